"""What rig costs, each work beside a reference that is measured in the same run."""
