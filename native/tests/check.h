// A tiny test harness: TEST(name) { ... } registers itself, CHECK(condition) reports and goes on.
#pragma once

#include <cstdio>
#include <vector>

namespace rig_test {

struct Test {
  const char* name;
  void (*body)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

inline int& failures() {
  static int count = 0;
  return count;
}

struct Registration {
  Registration(const char* name, void (*body)()) { tests().push_back({name, body}); }
};

inline void check(bool good, const char* text, const char* file, int line) {
  if (good) return;
  std::fprintf(stderr, "%s:%d: CHECK(%s) failed\n", file, line, text);
  ++failures();
}

}  // namespace rig_test

#define TEST(name)                                                             \
  static void test_##name();                                                   \
  static const rig_test::Registration registration_##name{#name, test_##name}; \
  static void test_##name()

#define CHECK(...) rig_test::check(static_cast<bool>(__VA_ARGS__), #__VA_ARGS__, __FILE__, __LINE__)
