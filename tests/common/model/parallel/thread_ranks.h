// The ranks of a tensor parallel model as threads of one process: Collectives without processes or
// sockets.
#pragma once

#include <barrier>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "common/model/parallel/collectives.h"

namespace taopd::testing {

class ThreadRanks {
 public:
  explicit ThreadRanks(int64_t size)
      : tensors_(static_cast<size_t>(size)), barrier_(static_cast<std::ptrdiff_t>(size)) {
    for (int64_t rank = 0; rank < size; ++rank) {
      ranks_.push_back(std::make_unique<Rank>(this, TensorParallel{rank, size}));
    }
  }

  Collectives* rank(size_t i) { return ranks_[i].get(); }

  // Runs function(rank) in one thread per rank, and returns when all are done.
  void Run(const std::function<void(size_t rank)>& function) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks_.size(); ++i) threads.emplace_back([&, i] { function(i); });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  class Rank final : public Collectives {
   public:
    Rank(ThreadRanks* all, const TensorParallel& place) : all_(*all), place_(place) {}
    const TensorParallel& place() const override { return place_; }

    void AllReduceSum(at::Tensor& tensor) override {
      const std::vector<at::Tensor> tensors = Exchange(tensor);
      at::Tensor sum = at::zeros_like(tensor);
      for (const at::Tensor& other : tensors) sum.add_(other);
      all_.barrier_.arrive_and_wait();
      tensor.copy_(sum);
    }
    void Broadcast(at::Tensor& tensor) override {
      const std::vector<at::Tensor> tensors = Exchange(tensor);
      if (place_.rank != 0) tensor.copy_(tensors[0]);
      all_.barrier_.arrive_and_wait();
    }
    std::vector<at::Tensor> GatherToFirst(const at::Tensor& tensor,
                                          const std::vector<int64_t>& last_sizes) override {
      std::vector<at::Tensor> tensors = Exchange(tensor);
      for (size_t i = 0; i < tensors.size(); ++i) {
        TORCH_CHECK(tensors[i].size(-1) == last_sizes[i]);
        tensors[i] = tensors[i].clone();
      }
      all_.barrier_.arrive_and_wait();
      return place_.rank == 0 ? tensors : std::vector<at::Tensor>();
    }

   private:
    // Returns the tensors of all ranks, valid until the next arrival at the barrier.
    std::vector<at::Tensor> Exchange(const at::Tensor& tensor) {
      all_.tensors_[static_cast<size_t>(place_.rank)] = tensor;
      all_.barrier_.arrive_and_wait();
      return all_.tensors_;
    }
    ThreadRanks& all_;
    const TensorParallel place_;
  };

  std::vector<at::Tensor> tensors_;
  std::barrier<> barrier_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace taopd::testing
