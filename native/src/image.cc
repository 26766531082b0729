#include "image.h"

#include <cstdio>

namespace rig {

Ref<Image> Image::load(const Ref<Device>& device, const uint8_t* binary, uint64_t nbytes, Error& err) {
  if (!device->usable(err)) return {};
  char why[RIG_LOG] = "";
  void* object = nullptr;
  if (!device->report(device->table()->load_image(device->state(), binary, nbytes, &object, why), why, err)) return {};
  return Ref<Image>(new Image(device, object));
}

Image::~Image() { device_->table()->unload_image(device_->state(), object_); }

bool Image::resolve(const std::string& name, Function& out, Error& err) {
  char why[RIG_WHY] = "";
  return device_->report(
      device_->table()->resolve(device_->state(), object_, name.c_str(), &out.entry, &out.max_threads, why), why, err);
}

}  // namespace rig
