// The host as a device: its memory is this process's, its work is done by the caller of a submit.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device.h"
#include "host_call.h"
#include "host_info.h"
#include "host_memory.h"
#include "image.h"
#include "pool.h"

namespace rig {
namespace {

void describe(void*, rig_device_info* info) {
  const HostInfo& host = host_info();
  snprintf(info->kind, sizeof info->kind, "host");
  snprintf(info->arch, sizeof info->arch, "%s", host.arch.c_str());
  snprintf(info->instruction_set, sizeof info->instruction_set, "%s", host.instruction_set.c_str());
  info->capabilities = RIG_CAN_INLINE | RIG_CAN_HOST_CODE | RIG_CAN_BORROW | RIG_CAN_COPY | RIG_CAN_ADDRESS | RIG_CAN_FILL |
                       RIG_CAN_HOST_WINDOW;
  info->cores = usable_cores();
  info->alignment = 64;
  info->cache_bytes = host.cache_bytes;
}

rig_result alloc(void*, uint64_t nbytes, uint32_t, rig_memory* memory, char* why) {
  uint8_t* at = host_alloc(nbytes);
  if (at == nullptr) {
    snprintf(why, RIG_WHY, "out of memory: the system gives no %llu bytes", static_cast<unsigned long long>(nbytes));
    return RIG_OUT_OF_MEMORY;
  }
  *memory = {at, reinterpret_cast<uint64_t>(at), at};
  return RIG_OK;
}

void free_memory(void*, rig_memory* memory, uint64_t nbytes) { host_free(memory->host, nbytes); }

rig_result read(void*, const rig_memory* memory, uint64_t offset, void* into, uint64_t nbytes, char*) {
  memcpy(into, memory->host + offset, nbytes);
  return RIG_OK;
}

rig_result write(void*, const rig_memory* memory, uint64_t offset, const void* from, uint64_t nbytes, char*) {
  memcpy(memory->host + offset, from, nbytes);
  return RIG_OK;
}

rig_result borrow(void*, const rig_memory* memory, uint64_t, rig_memory* mapped, char*) {
  *mapped = {memory->host, reinterpret_cast<uint64_t>(memory->host), memory->host};
  return RIG_OK;
}

// The host's submissions are executed by the core's tape, not through the table.
rig_result submit(void*, const rig_work*, char* why) {
  snprintf(why, RIG_WHY, "the host's work is done inline");
  return RIG_REFUSED;
}
rig_result prepare(void*, const rig_work*, void** prepared, char*) {
  *prepared = nullptr;
  return RIG_OK;
}
void release(void*, void*) {}
void stop(void*) {}
void destroy(void*) {}

const rig_driver kDriver{RIG_DRIVER_VERSION, sizeof(rig_driver), describe,        alloc,   free_memory,
                         read,               write,              host_load_image, host_unload_image, host_resolve,
                         host_check_part,    prepare,            release,         submit,  stop,
                         destroy,            borrow,             nullptr};

}  // namespace

Ref<Device> host_device() {
  // Never destroyed: memory may be given back after static destructors ran.
  static Ref<Device>* host =
      new Ref<Device>(new Device("host", &kDriver, nullptr, new Timeline("host")));
  return *host;
}

}  // namespace rig
