"""Turn what the tensor compiler makes into programs that `rig` runs."""
