#include "common/dist/tree_sum.h"

#include <gtest/gtest.h>

namespace taopd {
namespace {

std::vector<at::Tensor> Terms(int64_t count) {
  at::manual_seed(7);
  std::vector<at::Tensor> terms;
  for (int64_t i = 0; i < count; ++i) terms.push_back(at::randn({1000}));
  return terms;
}

std::vector<at::Tensor> Copies(const std::vector<at::Tensor>& terms, size_t begin, size_t end) {
  std::vector<at::Tensor> copies;
  for (size_t i = begin; i < end; ++i) copies.push_back(terms[i].clone());
  return copies;
}

TEST(TreeSumTest, AddsAllTerms) {
  for (const int64_t count : {1, 2, 3, 4, 5, 7, 8}) {
    const std::vector<at::Tensor> terms = Terms(count);
    const at::Tensor sum = SumTree(Copies(terms, 0, terms.size()));
    EXPECT_TRUE(at::allclose(sum, at::stack(terms).sum(0), 1e-5, 1e-5)) << count;
  }
}

TEST(TreeSumTest, PartsOfPowersOfTwoGiveTheSameBits) {
  for (const int64_t count : {4, 8, 12}) {
    const std::vector<at::Tensor> terms = Terms(count);
    const at::Tensor whole = SumTree(Copies(terms, 0, terms.size()));
    for (const size_t part : {1, 2, 4}) {
      std::vector<at::Tensor> sums;
      for (size_t i = 0; i < terms.size(); i += part)
        sums.push_back(SumTree(Copies(terms, i, i + part)));
      EXPECT_TRUE(at::equal(SumTree(sums), whole)) << count << " terms in parts of " << part;
    }
  }
}

}  // namespace
}  // namespace taopd
