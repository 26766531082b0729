// What the host's driver shares with drivers whose memory and code are this process's too.
#pragma once

#include <cstdint>

#include "rig/driver.h"

namespace rig {

// Memory of at least nbytes on 64 bytes; on a page from 64 KiB, with huge pages asked for from 2 MiB. Null if there is
// none. Memory of zero bytes has an address of its own too.
uint8_t* host_alloc(uint64_t nbytes);
void host_free(uint8_t* at, uint64_t nbytes);

rig_result host_load_image(void*, const uint8_t* binary, uint64_t nbytes, void** image, char* why);
void host_unload_image(void*, void* image);
rig_result host_resolve(void*, void* image, const char* name, uint64_t* function, uint64_t* max_threads, char* why);
rig_result host_check_part(void*, const rig_part* part, char* why);

}  // namespace rig
