/* The driver interface of rig: what a device kind gives to the core, as a table of C functions with a version of its own.
 *
 * The core validates, orders, fills holes, copies through staging and loops, once for all drivers. A driver allocates
 * memory, loads code and runs one submission after another; it never sees a program. Everything here is called without
 * the interpreter's lock and may be called from any thread, but the core calls `submit` of one device from one thread at
 * a time, in the order of the values.
 *
 * A function that can fail returns a rig_result and writes a message of its own (without the device's name, which the
 * core puts in front) into `why`, a buffer of RIG_WHY bytes.
 */
#ifndef RIG_DRIVER_H
#define RIG_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RIG_DRIVER_VERSION 1u
#define RIG_WHY 256u
#define RIG_LOG 8192u /* the same for load_image, which may tell what a compiler says */

typedef enum rig_result {
  RIG_OK = 0,
  RIG_INVALID = 1,
  RIG_REFUSED = 2,
  RIG_OUT_OF_MEMORY = 3,
  RIG_LOST = 4
} rig_result;

/* What a device can do beyond the required operations. */
typedef enum rig_capability {
  RIG_CAN_INLINE = 1 << 0,        /* its work is done when submit returns (the host) */
  RIG_CAN_HOST_CODE = 1 << 1,     /* its launches are calls of void f(const uint64_t*, uint64_t, uint64_t) */
  RIG_CAN_BORROW = 1 << 2,        /* it maps host memory and memory that the host addresses */
  RIG_CAN_COPY = 1 << 3,          /* copies are parts of its submissions */
  RIG_CAN_ADDRESS = 1 << 4,       /* memory has an address that work can hold */
  RIG_CAN_HANDLE = 1 << 5,        /* memory has a driver's object that work can hold */
  RIG_CAN_FILL = 1 << 6,          /* native calls among its parts */
  RIG_CAN_WORDS = 1 << 7,         /* work in the driver's own format */
  RIG_CAN_HOST_WINDOW = 1 << 8,   /* the host addresses its memory directly */
  RIG_CAN_SHARE = 1 << 9          /* borrow takes any memory of this driver's devices, or says why not */
} rig_capability;

typedef struct rig_device_info {
  char kind[16];             /* "host", "memory", "opencl", ... */
  char arch[96];             /* what its code is compiled for */
  char instruction_set[16];  /* "x86_64", "arm64" or empty */
  uint32_t capabilities;     /* of rig_capability */
  uint32_t cores;
  uint64_t alignment;   /* bytes on which its memory starts */
  uint64_t cache_bytes; /* of the last-level cache, 0 if not known */
} rig_device_info;

typedef struct rig_memory {
  void* object;     /* the driver's object */
  uint64_t address; /* as the device's work sees it, 0 if it has none */
  uint8_t* host;    /* as the host sees it, NULL if it does not */
} rig_memory;

typedef struct rig_point {
  void* timeline;
  uint64_t value;
} rig_point;

typedef enum rig_part_kind { RIG_LAUNCH = 0, RIG_COPY = 1, RIG_FILL = 2, RIG_WORDS = 3 } rig_part_kind;

typedef struct rig_end {
  void* object;     /* of the memory as this device knows it */
  uint64_t address; /* of the end's first byte as this device sees it */
  uint64_t offset;  /* of the end's first byte within object */
} rig_end;

typedef struct rig_part {
  uint32_t kind;          /* a rig_part_kind */
  uint32_t params_offset; /* within the submission's parameter block */
  uint64_t params_size;
  uint64_t function;      /* what the driver's resolve gave */
  uint64_t groups[3];
  uint64_t threads[3];
  uint64_t shared;
  rig_end src;
  rig_end dst;
  uint64_t length;
} rig_part;

typedef struct rig_work {
  const rig_part* parts; /* valid until submit returns; for constant work until release */
  uint32_t part_count;
  uint32_t constant;     /* no submit changes parts or params */
  const uint8_t* params; /* as parts */
  uint64_t params_size;
  void* prepared;        /* what prepare gave */
  uint64_t value;        /* the point's value on this device's timeline */
  const rig_point* waits; /* foreign points to wait for; a point of this device's own timeline is only checked for failure */
  uint32_t wait_count;
  void* keep;            /* handed to services->done when the work is over */
} rig_work;

/* What the core gives to a driver. All of these may be called from any thread. */
typedef struct rig_services {
  void (*reach)(void* timeline, uint64_t value);                   /* every submission up to value is over */
  void (*lose)(void* timeline, const char* reason);                /* the device is gone for good */
  void (*fail)(void* timeline, uint64_t value, const char* reason); /* value's work was not done; call before reach */
  int (*wait)(rig_point point); /* block: 0 reached, 1 its work failed or its device is lost */
  void (*done)(void* keep);
} rig_services;

typedef struct rig_driver {
  uint32_t version; /* RIG_DRIVER_VERSION */
  uint32_t size;    /* sizeof(rig_driver) */

  void (*describe)(void* device, rig_device_info* info);
  rig_result (*alloc)(void* device, uint64_t nbytes, uint32_t kind, rig_memory* memory, char* why);
  void (*free)(void* device, rig_memory* memory, uint64_t nbytes);
  rig_result (*read)(void* device, const rig_memory* memory, uint64_t offset, void* into, uint64_t nbytes, char* why);
  rig_result (*write)(void* device, const rig_memory* memory, uint64_t offset, const void* from, uint64_t nbytes, char* why);
  rig_result (*load_image)(void* device, const uint8_t* binary, uint64_t nbytes, void** image, char* why);
  void (*unload_image)(void* device, void* image);
  rig_result (*resolve)(void* device, void* image, const char* name, uint64_t* function, uint64_t* max_threads, char* why);
  rig_result (*check_part)(void* device, const rig_part* part, char* why); /* geometry, parameters: what the device runs */
  rig_result (*prepare)(void* device, const rig_work* work, void** prepared, char* why);
  void (*release)(void* device, void* prepared);
  rig_result (*submit)(void* device, const rig_work* work, char* why);
  void (*stop)(void* device);    /* end after the work in flight; no submit follows; a fork's child only lets go */
  void (*destroy)(void* device); /* nothing names the device or its memory any more */

  /* Optional, NULL where the capability is missing. */
  rig_result (*borrow)(void* device, const rig_memory* memory, uint64_t nbytes, rig_memory* mapped, char* why);
  void (*unborrow)(void* device, rig_memory* mapped);
} rig_driver;

#ifdef __cplusplus
}
#endif
#endif
