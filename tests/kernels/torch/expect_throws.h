// Calls that must be refused with a c10::Error.
#pragma once

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace taopd::testing {

// Expects the call to throw an error that says `part`.
inline void ExpectThrows(const std::string& part, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "nothing thrown, expected: " << part;
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr(part));
  }
}

}  // namespace taopd::testing
