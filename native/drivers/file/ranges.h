// A file and the ranges of it that are memory.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "fork.h"
#include "ref.h"

namespace rig {

// What the memory of a file device names.
struct FileRange {
  uint64_t offset = 0;
  uint64_t nbytes = 0;
};

// An open file; it is closed when the last call that reads or writes it is over.
class OpenFile : public RefCounted {
 public:
  explicit OpenFile(int fd);

  // Move all of the bytes, in pieces. False and why if the file does not hold them, or the system fails. A write never makes
  // a file longer that became shorter meanwhile.
  bool read(uint64_t at, void* into, uint64_t nbytes, std::string& why) const;
  bool write(uint64_t at, const void* from, uint64_t nbytes, std::string& why) const;

  bool size(uint64_t& nbytes) const;
  bool resize(uint64_t nbytes) const;
  // Make bytes zero, and give their room back to the system.
  bool clear(const FileRange& range) const;

 protected:
  ~OpenFile() override;

 private:
  int fd_;
};

// Which ranges of a file are memory: the file as it was opened, and those allocated behind it.
class FileRanges {
 public:
  FileRanges(int fd, uint64_t nbytes) : file_(new OpenFile(fd)), whole_{0, nbytes}, end_(nbytes), kept_(nbytes) {}

  FileRange* whole() { return &whole_; }
  Ref<OpenFile> file() const;  // null once it is closed

  FileRange* add(uint64_t nbytes, std::string& why);  // null and why if the file cannot grow
  void remove(FileRange* range);
  void close();  // cuts off what was added; in a fork's child the file is left as it is

 private:
  bool cut(uint64_t end);  // end the file there, unless somebody else made it longer

  mutable ForkLock lock_;
  Ref<OpenFile> file_;
  FileRange whole_;
  uint64_t end_;   // of the last range, and of the file as far as this process made it
  uint64_t kept_;  // the end of what was not made here, which is never cut off
  std::map<uint64_t, uint64_t> added_;  // offset to size, in whole pages; also what others wrote between those
  const uint32_t generation_ = fork_generation();
};

}  // namespace rig
