// Runs every registered test whose name contains the argument, or all of them.
#include <cstring>

#include "check.h"

int main(int argc, char** argv) {
  int ran = 0;
  for (const rig_test::Test& test : rig_test::tests()) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    const int before = rig_test::failures();
    test.body();
    ++ran;
    if (rig_test::failures() != before) std::fprintf(stderr, "FAILED %s\n", test.name);
  }
  std::printf("%d tests, %d failed checks\n", ran, rig_test::failures());
  return rig_test::failures() == 0 && ran > 0 ? 0 : 1;
}
