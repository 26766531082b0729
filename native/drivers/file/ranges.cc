#include "file/ranges.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

namespace rig {
namespace {

constexpr uint64_t kPiece = 1 << 20;  // bytes of one call: its cost vanishes, and a file that shrinks is seen in time
constexpr uint64_t kPage = 4096;
constexpr uint64_t kMost = uint64_t{1} << 62;  // a file's end as the system counts it

uint64_t pages(uint64_t nbytes) { return (nbytes + kPage - 1) / kPage * kPage; }

std::string system_error(int number) {
  char text[128] = "";
  return strerror_r(number, text, sizeof text);
}

}  // namespace

// What is moved is large: reading further ahead from a disk is worth more than several reads at once.
OpenFile::OpenFile(int fd) : fd_(fd) { posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL); }

OpenFile::~OpenFile() { ::close(fd_); }

bool OpenFile::size(uint64_t& nbytes) const {
  struct stat info{};
  if (fstat(fd_, &info) != 0) return false;
  nbytes = static_cast<uint64_t>(info.st_size);
  return true;
}

bool OpenFile::resize(uint64_t nbytes) const {
  int result;
  do {
    result = ftruncate(fd_, static_cast<off_t>(nbytes));
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

bool OpenFile::clear(const FileRange& range) const {
  return fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(range.offset),
                   static_cast<off_t>(range.nbytes)) == 0;
}

bool OpenFile::read(uint64_t at, void* into, uint64_t nbytes, std::string& why) const {
  for (uint64_t done = 0; done < nbytes;) {
    const ssize_t n = pread(fd_, static_cast<uint8_t*>(into) + done, std::min(kPiece, nbytes - done), static_cast<off_t>(at + done));
    if (n > 0) {
      done += static_cast<uint64_t>(n);
    } else if (n == 0 || errno != EINTR) {
      const std::string found = n == 0 ? "the file became shorter, it ends before that" : system_error(errno);
      why = "reading " + std::to_string(nbytes - done) + " bytes from byte " + std::to_string(at + done) + ": " + found;
      return false;
    }
  }
  return true;
}

bool OpenFile::write(uint64_t at, const void* from, uint64_t nbytes, std::string& why) const {
  for (uint64_t done = 0; done < nbytes;) {
    const uint64_t piece = std::min(kPiece, nbytes - done);
    uint64_t end = 0;
    ssize_t n = size(end) ? 0 : -1;
    const bool shorter = n == 0 && end < at + done + piece;
    if (n == 0 && !shorter) n = pwrite(fd_, static_cast<const uint8_t*>(from) + done, piece, static_cast<off_t>(at + done));
    if (n > 0) {
      done += static_cast<uint64_t>(n);
    } else if (n == 0 || errno != EINTR) {
      const std::string found = shorter  ? "the file became shorter, it ends at byte " + std::to_string(end)
                                : n == 0 ? "the system takes none"
                                         : system_error(errno);
      why = "writing " + std::to_string(nbytes - done) + " bytes from byte " + std::to_string(at + done) + ": " + found;
      return false;
    }
  }
  return true;
}

Ref<OpenFile> FileRanges::file() const {
  std::lock_guard lock(lock_);
  return file_;
}

FileRange* FileRanges::add(uint64_t nbytes, std::string& why) {
  std::lock_guard lock(lock_);
  uint64_t size = 0;
  if (!file_ || !file_->size(size)) {
    why = "the file is closed";
    return nullptr;
  }
  const uint64_t need = pages(std::max<uint64_t>(nbytes, 1));
  uint64_t at = pages(whole_.nbytes);
  for (const auto& [offset, length] : added_) {
    if (offset - at >= need) break;
    at = offset + length;
  }
  // Behind the last range, and behind what somebody else wrote there.
  const bool last = added_.empty() || at > added_.rbegin()->first;
  const uint64_t before = at;
  if (last) at = std::max(at, pages(std::max(size, end_)));
  if (nbytes > kMost || at > kMost - need) {
    why = "the file cannot grow to that";
    return nullptr;
  }
  if (last && !file_->resize(at + need)) {
    why = "the file cannot grow to " + std::to_string(at + need) + " bytes: " + system_error(errno);
    return nullptr;
  }
  if (last && at > before) {
    added_[before] = at - before;
    kept_ = at;
  }
  if (last) end_ = at + need;
  added_[at] = need;
  return new FileRange{at, need};
}

void FileRanges::remove(FileRange* range) {
  const FileRange gone = *range;
  delete range;
  if (generation_ != fork_generation()) return;  // the file is the parent's
  std::lock_guard lock(lock_);
  if (!file_) return;
  // Bytes that are neither cut off nor made zero stay out of use.
  if (gone.offset != added_.rbegin()->first) {
    if (file_->clear(gone)) added_.erase(gone.offset);
    return;
  }
  added_.erase(gone.offset);
  const uint64_t end = added_.empty() ? 0 : added_.rbegin()->first + added_.rbegin()->second;
  if (!cut(std::max(end, kept_))) added_[gone.offset] = gone.nbytes;
}

bool FileRanges::cut(uint64_t end) {
  uint64_t size = 0;
  if (!file_->size(size) || size != end_ || !file_->resize(end)) return false;
  end_ = end;
  return true;
}

void FileRanges::close() {
  std::lock_guard lock(lock_);
  if (generation_ == fork_generation() && file_ && !added_.empty()) cut(kept_);
  file_ = {};
}

}  // namespace rig
