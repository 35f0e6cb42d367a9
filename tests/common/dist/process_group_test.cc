// Groups of ranks that are threads of this process.
#include "common/dist/process_group.h"

#include <absl/synchronization/notification.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "common/base/file_descriptor.h"
#include "common/dist/rendezvous_addresses.h"
#include "common/dist/tree_sum.h"
#include "common/dist/watch_token.h"
#include "tests/common/dist/rank_threads.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

ProcessGroupOptions TestOptions() {
  return {.connect_timeout = absl::Seconds(20), .collective_timeout = absl::Seconds(20)};
}

// Returns rank r's part of the sums.
at::Tensor Mine(int64_t rank, int64_t size) {
  return at::arange(size, at::kFloat) + 100.0 * static_cast<double>(rank);
}

class ProcessGroupTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(ProcessGroupTest, Collectives) {
  const int64_t world = GetParam();
  OnRanks(world, TestOptions(), [world](ProcessGroup& group) {
    const int64_t rank = group.rank();
    EXPECT_EQ(group.world_size(), world);
    const double extra = 100.0 * static_cast<double>(world * (world - 1) / 2);
    const at::Tensor expected =
        at::arange(6 * world, at::kFloat) * static_cast<double>(world) + extra;

    at::Tensor sum = Mine(rank, 6 * world);
    EXPECT_OK(group.AllReduce(sum, Reduction::kSum));
    EXPECT_TRUE(at::equal(sum, expected));
    at::Tensor largest = Mine(rank, 6);
    EXPECT_OK(group.AllReduce(largest, Reduction::kMax));
    EXPECT_TRUE(at::equal(largest, Mine(world - 1, 6)));

    const at::Tensor arrived = at::zeros({6 * world}), whole = at::zeros({6 * world});
    EXPECT_OK(group.AllToAll(arrived, Mine(rank, 6 * world)));
    const at::Tensor slice = arrived.view({world, 6}).sum(0);
    EXPECT_TRUE(at::equal(slice, expected.slice(0, 6 * rank, 6 * (rank + 1))));
    EXPECT_OK(group.AllGather(whole, slice));
    EXPECT_TRUE(at::equal(whole, expected));

    for (int64_t root = 0; root < world; ++root) {
      const at::Tensor text = Mine(rank, 5);
      EXPECT_OK(group.Broadcast(text, root));
      EXPECT_TRUE(at::equal(text, Mine(root, 5)));
      EXPECT_EQ(*group.BroadcastText(Concat("from ", rank), root), Concat("from ", root));
    }
    EXPECT_EQ(*group.BroadcastText("", 0), "");
    EXPECT_OK(Barrier(group));
    EXPECT_EQ(group.stats().count("all_reduce"), world > 1 ? 1U : 0U);
    group.Leave();
  });
}

TEST_P(ProcessGroupTest, TwoCollectivesAtOnce) {
  OnRanks(GetParam(), TestOptions(), [](ProcessGroup& group) {
    at::Tensor a = at::ones({1000}), b = at::full({1000}, 2.0);
    auto first = group.StartAllReduce(a, Reduction::kSum);
    auto second = group.StartAllReduce(b, Reduction::kSum);
    EXPECT_OK(second->Wait());
    EXPECT_OK(first->Wait());
    EXPECT_EQ(a[0].item<double>() * 2, b[999].item<double>());
    EXPECT_EQ(a[0].item<double>(), static_cast<double>(group.world_size()));
    group.Leave();
  });
}

TEST_P(ProcessGroupTest, AgreesOnTheFirstFailure) {
  const int64_t world = GetParam();
  OnRanks(world, TestOptions(), [world](ProcessGroup& group) {
    EXPECT_OK(group.AgreeOnStatus(absl::OkStatus()));
    EXPECT_EQ(*group.AgreeOnLargest(10 + group.rank()), 9 + world);
    const bool fails = group.rank() == world - 1;
    const absl::Status agreed =
        group.AgreeOnStatus(fails ? DataLoss("a torn file") : absl::OkStatus());
    EXPECT_ERROR(agreed, kDataLoss,
                 world == 1 ? "a torn file" : Concat("rank ", world - 1, ": a torn file"));
    group.Leave();
  });
}

TEST_P(ProcessGroupTest, TreeSumsDoNotDependOnTheRanks) {
  const int64_t world = GetParam();
  for (const int64_t count : {1, 2, 4}) {  // of the terms of a rank
    at::manual_seed(static_cast<uint64_t>(count));
    std::vector<at::Tensor> all, copies;
    for (int64_t i = 0; i < world * count; ++i) {
      all.push_back(at::randn({96}));
      copies.push_back(all.back().clone());
    }
    const at::Tensor expected = SumTree(copies);
    EXPECT_TRUE(at::allclose(expected, at::stack(all).sum(0), 1e-5, 1e-5)) << count;
    OnRanks(world, TestOptions(), [&](ProcessGroup& group) {
      std::vector<at::Tensor> terms;
      for (int64_t i = 0; i < count; ++i) terms.push_back(all[group.rank() * count + i].clone());
      const at::Tensor sum = SumTree(terms);
      EXPECT_OK(AllReduceTree(group, sum));
      EXPECT_TRUE(at::equal(sum, expected)) << count;
      group.Leave();
    });
  }
}

// A number's sum is the same bits at every place of a buffer, and on every rank.
TEST_P(ProcessGroupTest, AllReduceTreeDoesNotDependOnThePlaceInTheBuffer) {
  OnRanks(GetParam(), {}, [&](ProcessGroup& group) {
    constexpr int64_t kNumbers = 1000;
    const at::Tensor numbers =
        at::arange(kNumbers, at::kFloat)
            .add(1.0f)
            .sin()
            .mul(1.0f + 0.37f * static_cast<float>(group.rank() * group.rank()));
    at::Tensor whole = numbers.clone();
    ASSERT_OK(AllReduceTree(group, whole));
    for (const int64_t begin : {1, 3, 250, 499, 997}) {
      at::Tensor part = numbers.narrow(0, begin, kNumbers - begin).clone();
      ASSERT_OK(AllReduceTree(group, part));
      EXPECT_TRUE(at::equal(part, whole.narrow(0, begin, kNumbers - begin))) << begin;
    }
    at::Tensor largest = whole.clone();
    ASSERT_OK(group.AllReduce(largest, Reduction::kMax));
    EXPECT_TRUE(at::equal(largest, whole));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, ProcessGroupTest, ::testing::Values(1, 2, 3, 4));

TEST(ProcessGroupFaultTest, AFailureOfOneRankEndsTheOthersWithItsName) {
  OnRanks(3, TestOptions(), [](ProcessGroup& group) {
    EXPECT_OK(Barrier(group));  // all have met
    if (group.rank() == 2) {
      group.Fail(ResourceExhausted("out of memory"));
      return;
    }
    EXPECT_ERROR(Barrier(group), kResourceExhausted, "rank 2: out of memory");
    EXPECT_ERROR(group.health(), kResourceExhausted, "rank 2: out of memory");
    EXPECT_ERROR(Barrier(group), kResourceExhausted, "rank 2");
  });
}

TEST(ProcessGroupFaultTest, ARankThatGoesWithoutAWordIsNamed) {
  for (const int64_t gone : {0, 1}) {
    OnRanks(3, TestOptions(), [gone](ProcessGroup& group) {
      EXPECT_OK(Barrier(group));
      if (group.rank() == gone) return;  // its connections end as those of a killed process do
      EXPECT_ERROR(Barrier(group), kUnavailable, Concat("rank ", gone, " has died"));
    });
  }
}

TEST(ProcessGroupFaultTest, ARankThatDoesNotComeToACollectiveIsNamed) {
  ProcessGroupOptions options = TestOptions();
  options.collective_timeout = absl::Seconds(1);
  options.silence = absl::Seconds(1);  // and so a word every 250 ms
  OnRanks(3, options, [](ProcessGroup& group) {
    EXPECT_OK(Barrier(group));
    if (group.rank() == 1) {  // lives, but is busy with something else
      while (group.health().ok()) absl::SleepFor(absl::Milliseconds(10));
      EXPECT_ERROR(group.health(), kUnavailable, "for rank 1, which has begun 1");
      return;
    }
    EXPECT_ERROR(Barrier(group), kUnavailable, "for rank 1, which has begun 1");
  });
}

TEST(ProcessGroupFaultTest, AnAgreementWaitsLongerThanACollective) {
  ProcessGroupOptions options = TestOptions();
  options.collective_timeout = absl::Milliseconds(200);
  OnRanks(2, options, [](ProcessGroup& group) {
    if (group.rank() == 1) absl::SleepFor(absl::Milliseconds(600));
    EXPECT_OK(group.AgreeOnStatus(absl::OkStatus()));
    group.Leave();
  });
}

// ---- Where ranks meet, over TCP -----------------------------------------------------------------

int FreePort() {
  const FileDescriptor listener(ListenAt("127.0.0.1", 0).value());
  return LocalName(listener.get()).second;
}

// The ranks of one machine, whose launcher has not said so, at 127.0.0.1.
std::vector<Rendezvous> Meet(int64_t world_size) {
  std::vector<Rendezvous> ranks(world_size);
  const int port = FreePort();
  for (int64_t rank = 0; rank < world_size; ++rank) {
    ranks[rank] = {.rank = rank,
                   .world_size = world_size,
                   .local_world_size = 0,
                   .master_addr = "127.0.0.1",
                   .master_port = port,
                   .secret = "known to all ranks",
                   .prefix = "test"};
  }
  return ranks;
}

void OnMetRanks(
    const std::vector<Rendezvous>& ranks, ProcessGroupOptions options,
    const std::function<void(int64_t, absl::StatusOr<std::unique_ptr<ProcessGroup>>)>& body) {
  options.grace = absl::InfiniteDuration();
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  std::vector<std::thread> threads;
  for (const Rendezvous& where : ranks) {
    threads.emplace_back([&] { body(where.rank, ProcessGroup::Connect(where, options)); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ProcessGroupMeetingTest, RanksOfOneMachineFindOutHowManyTheyAre) {
  std::vector<Rendezvous> ranks = Meet(3);
  ranks[1].local_world_size = 2;  // this one has been told something
  ranks[1].local_rank = 1;
  OnMetRanks(ranks, TestOptions(), [](int64_t rank, auto group) {
    ASSERT_OK(group);
    EXPECT_EQ((*group)->local_world_size(), rank == 1 ? 2 : 3);
    EXPECT_EQ((*group)->local_rank(), rank);
    EXPECT_OK(Barrier(**group));
    (*group)->Leave();
  });
}

// Whoever reaches the store reads what rank 0 has published; no part of it is the token.
TEST(ProcessGroupMeetingTest, TheStoreDoesNotHoldTheToken) {
  const std::vector<Rendezvous> ranks = Meet(2);
  absl::Notification is_read;
  OnMetRanks(ranks, TestOptions(), [&](int64_t rank, auto group) {
    ASSERT_OK(group);
    if (rank == 0) {
      c10d::TCPStoreOptions options;
      options.port = static_cast<uint16_t>(ranks[0].master_port);
      options.waitWorkers = false;
      c10d::TCPStore stranger("127.0.0.1", options);
      const std::vector<uint8_t> bytes = stranger.get("test/watch");
      const std::string published(bytes.begin(), bytes.end());
      const std::string token = WatchToken(ranks[0].secret, published);
      EXPECT_EQ(published.find(token), std::string::npos);
      EXPECT_EQ(published.find(ranks[0].secret), std::string::npos);
      // Neither a published word nor what no secret would give is the token.
      EXPECT_NE(WatchToken("", published), token);
      is_read.Notify();
    }
    is_read.WaitForNotification();
    EXPECT_OK(Barrier(**group));
    (*group)->Leave();
  });
}

TEST(ProcessGroupMeetingTest, ARankWithAnotherSecretIsTurnedAwayByName) {
  std::vector<Rendezvous> ranks = Meet(2);
  ranks[1].secret = "another";
  ProcessGroupOptions options = TestOptions();
  options.connect_timeout = absl::Seconds(3);
  OnMetRanks(ranks, options, [](int64_t rank, auto group) {
    if (rank == 0) {
      EXPECT_ERROR(group, kUnavailable, "only 1 of 2 ranks have connected within 3s; missing: 1");
    } else {
      EXPECT_ERROR(group, kPermissionDenied, "their TAOPD_RANK_SECRET differs");
    }
  });
}

// The store listens where the watch does, not at every address of the machine.
TEST(ProcessGroupMeetingTest, TheStoreListensAtOneAddress) {
  const std::vector<Rendezvous> ranks = Meet(2);
  OnMetRanks(ranks, TestOptions(), [&](int64_t rank, auto group) {
    ASSERT_OK(group);
    if (rank == 0) {
      // 127.0.0.2 is this machine as well: whoever listens at every address answers there.
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      const FileDescriptor closes(fd);
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
      address.sin_port = htons(static_cast<uint16_t>(ranks[0].master_port));
      EXPECT_NE(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    }
    EXPECT_OK(Barrier(**group));
    (*group)->Leave();
  });
}

TEST(ProcessGroupMeetingTest, WhatIsMissingIsNamed) {
  const TempDir dir;
  ProcessGroupOptions options = TestOptions();
  options.connect_timeout = absl::Milliseconds(300);
  EXPECT_ERROR(ProcessGroup::Connect({.world_size = 3, .store_file = dir.File("store")}, options),
               kUnavailable, "only 1 of 3 ranks have connected within 300ms; missing: 1, 2");
  const Rendezvous nobody = {
      .rank = 1, .world_size = 2, .master_addr = "127.0.0.1", .master_port = 1};
  EXPECT_ERROR(ProcessGroup::Connect(nobody, options), kUnavailable,
               "rank 1 of 2 cannot join the others at 127.0.0.1:1");
  options.interface = "eth77";
  EXPECT_ERROR(ProcessGroup::Connect(Meet(2)[0], options), kInvalidArgument,
               "dist.interface = eth77");
}

}  // namespace
}  // namespace taopd::testing
