#include <gtest/gtest.h>
TEST(Text, Compiles) {}
