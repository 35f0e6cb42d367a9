// Macros for expectations on absl::Status and absl::StatusOr, with the names of codes and matchers:
//   EXPECT_OK(status_or_value);
//   EXPECT_ERROR(status_or_value, kNotFound, "part of the message");
//   ASSERT_OK_AND_ASSIGN(auto value, MakeValue());
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status.h"

namespace taopd::testing {
using enum absl::StatusCode;
// The matchers that most tests name.
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::StartsWith;

inline absl::Status StatusOf(const absl::Status& status) { return status; }
template <typename T>
absl::Status StatusOf(const absl::StatusOr<T>& value) {
  return value.status();
}

// Returns the number of times that a status's message mentions `part`.
inline int NumMentions(const absl::Status& status, const std::string& part) {
  const std::string message(status.message());
  int count = 0;
  for (size_t at = 0; (at = message.find(part, at)) != std::string::npos; ++at) ++count;
  return count;
}
}  // namespace taopd::testing

#define EXPECT_OK(expr)                                                  \
  do {                                                                   \
    const absl::Status expect_status = ::taopd::testing::StatusOf(expr); \
    EXPECT_TRUE(expect_status.ok()) << expect_status.ToString();         \
  } while (false)
#define ASSERT_OK(expr)                                                  \
  do {                                                                   \
    const absl::Status assert_status = ::taopd::testing::StatusOf(expr); \
    ASSERT_TRUE(assert_status.ok()) << assert_status.ToString();         \
  } while (false)
// ASSERT_OK_AND_ASSIGN(auto value, MakeValue());
#define ASSERT_OK_AND_ASSIGN(lhs, expr) \
  ASSERT_OK_AND_ASSIGN_IMPL(TAOPD_CONCAT(test_status_or_, __LINE__), lhs, expr)
#define ASSERT_OK_AND_ASSIGN_IMPL(tmp, lhs, expr)   \
  auto tmp = (expr);                                \
  ASSERT_TRUE(tmp.ok()) << tmp.status().ToString(); \
  lhs = std::move(tmp).value()
#define EXPECT_ERROR(expr, expected_code, part)                                   \
  do {                                                                            \
    const absl::Status error_status = ::taopd::testing::StatusOf(expr);           \
    EXPECT_EQ(error_status.code(), expected_code) << error_status.ToString();     \
    EXPECT_THAT(std::string(error_status.message()), ::testing::HasSubstr(part)); \
  } while (false)
