#include "common/dist/rank_watch.h"

#include <atomic>
#include <cerrno>

#include "tests/support/process.h"
#include "tests/support/raw_sockets.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

RankWatchOptions Options(int64_t rank, int64_t world_size) {
  return {.rank = rank,
          .world_size = world_size,
          .beat = absl::Milliseconds(20),
          .silence = absl::Seconds(10),
          .token = "secret"};
}

// Returns whether the other side closes the connection.
bool IsRefused(RawClient* client) {
  bool is_reset = false;
  client->ReadAll(&is_reset);
  return !is_reset || errno == ECONNRESET;
}

class RankWatchTest : public ::testing::Test {
 protected:
  void Open(int64_t world_size, absl::Duration silence = absl::Seconds(10)) {
    RankWatchOptions options = Options(0, world_size);
    options.silence = silence;
    ASSERT_OK_AND_ASSIGN(root_, RankWatch::Listen(options, "127.0.0.1"));
  }
  std::unique_ptr<RankWatch> Join(int64_t rank, int64_t world_size) {
    return RankWatch::Connect(Options(rank, world_size), "127.0.0.1", root_->port(),
                              absl::Seconds(10))
        .value();
  }
  static bool Fails(const RankWatch& watch) {
    return PollUntil(absl::Seconds(10), [&] { return !watch.failure().ok(); });
  }
  std::unique_ptr<RankWatch> root_;
};

TEST_F(RankWatchTest, AFarewellIsNoFailure) {
  Open(3);
  auto one = Join(1, 3), two = Join(2, 3);
  ASSERT_OK(root_->AwaitAll(absl::Seconds(10)));
  one->Leave();
  one.reset();
  two->Fail(DataLoss("torn\nfile"));  // what comes after it still arrives
  ASSERT_TRUE(Fails(*root_));
  EXPECT_ERROR(root_->failure(), kDataLoss, "rank 2: torn file");
}

TEST_F(RankWatchTest, ADeathReachesAllOthers) {
  Open(3);
  auto one = Join(1, 3), two = Join(2, 3);
  ASSERT_OK(root_->AwaitAll(absl::Seconds(10)));
  one.reset();
  ASSERT_TRUE(Fails(*two));
  EXPECT_ERROR(two->failure(), kUnavailable, "rank 1 has died");
  EXPECT_ERROR(root_->failure(), kUnavailable, "rank 1 has died");
}

// Any rank may be asked; all hear it, those that come late as well, and the largest code counts.
TEST_F(RankWatchTest, AStopReachesAllRanks) {
  Open(3);
  auto one = Join(1, 3);
  std::atomic<int> at_root = 0, at_one = 0, at_two = 0;
  root_->OnStop([&](int code) { at_root = code; });
  one->OnStop([&](int code) {
    at_one = code;
    one->RequestStop(code);  // as a rank does that passes on what it hears
  });
  one->RequestStop(75);
  EXPECT_TRUE(PollUntil(absl::Seconds(10), [&] { return at_root == 75 && at_one == 75; }));
  auto two = Join(2, 3);
  two->OnStop([&](int code) { at_two = code; });
  EXPECT_TRUE(PollUntil(absl::Seconds(10), [&] { return at_two == 75; }));
  two->RequestStop(78);
  one->RequestStop(75);
  EXPECT_TRUE(PollUntil(absl::Seconds(10), [&] { return at_root == 78 && at_one == 78; }));
  EXPECT_OK(root_->failure());
  for (RankWatch* watch : {root_.get(), one.get(), two.get()}) watch->OnStop(nullptr);
}

TEST_F(RankWatchTest, SilenceIsAFailure) {
  Open(2, absl::Milliseconds(300));
  RawClient peer(root_->port());
  EXPECT_TRUE(peer.Send("hello 1 secret\n"));
  ASSERT_TRUE(Fails(*root_));
  EXPECT_ERROR(root_->failure(), kUnavailable, "rank 1 has sent no heartbeat for 300ms");
}

// A line that does not fit into the socket is not continued by the next one.
TEST_F(RankWatchTest, APeerThatDoesNotReadIsLost) {
  Open(2, absl::Minutes(10));
  RawClient peer(root_->port());
  EXPECT_TRUE(peer.Send("hello 1 secret\n"));
  ASSERT_OK(root_->AwaitAll(absl::Seconds(10)));
  int code = 0;
  ASSERT_TRUE(PollUntil(absl::Minutes(1), [&] {
    for (int i = 0; i < 10'000; ++i) root_->RequestStop(++code);
    return !root_->failure().ok();
  }));
  EXPECT_ERROR(root_->failure(), kUnavailable, "rank 1 has died");
}

TEST_F(RankWatchTest, AStrangerThatNeverEndsItsLineIsTurnedAway) {
  Open(2, absl::Milliseconds(300));
  RawClient stranger(root_->port());
  EXPECT_TRUE(PollUntil(absl::Seconds(10), [&] { return !stranger.Send("x"); }));
  EXPECT_OK(root_->failure());
}

TEST_F(RankWatchTest, StrangersAreTurnedAway) {
  Open(2);
  for (const char* line : {"hello 1 wrong\n", "hello 2 secret\n", "hello 0 secret\n",
                           "GET / HTTP\n", "hello x secret\n", "\n"}) {
    RawClient stranger(root_->port());
    EXPECT_TRUE(stranger.Send(line));
    EXPECT_TRUE(IsRefused(&stranger)) << line;
  }
  RawClient endless(root_->port());
  EXPECT_TRUE(endless.Send(std::string(5000, 'x')));
  EXPECT_TRUE(IsRefused(&endless));
  EXPECT_OK(root_->failure());
  auto one = Join(1, 2);
  EXPECT_OK(root_->AwaitAll(absl::Seconds(10)));
  RawClient twin(root_->port());
  EXPECT_TRUE(twin.Send("hello 1 secret\n"));
  EXPECT_TRUE(IsRefused(&twin));
  EXPECT_OK(root_->failure());
  one->Leave();
  root_->Leave();
}

TEST_F(RankWatchTest, ARankWithAnotherTokenIsToldWhy) {
  Open(2);
  RankWatchOptions options = Options(1, 2);
  options.token = "another";
  EXPECT_ERROR(RankWatch::Connect(options, "127.0.0.1", root_->port(), absl::Seconds(10)),
               kPermissionDenied, "their TAOPD_RANK_SECRET differs");
  auto one = Join(1, 2);
  EXPECT_OK(root_->AwaitAll(absl::Seconds(10)));
  one->Leave(), root_->Leave();
}

TEST_F(RankWatchTest, ARankThatHasNoPlaceIsToldWhy) {
  Open(2);
  auto one = Join(1, 2);
  ASSERT_OK(root_->AwaitAll(absl::Seconds(10)));
  const auto join = [&](int64_t rank) {
    return RankWatch::Connect(Options(rank, 3), "127.0.0.1", root_->port(), absl::Seconds(10));
  };
  EXPECT_ERROR(join(1), kUnavailable,
               "rank 0 has refused rank 1: another process has connected with this rank");
  EXPECT_ERROR(join(2), kInvalidArgument,
               "rank 0 has refused rank 2: the other ranks of this run are 1 to 1");
  EXPECT_OK(root_->failure());
  one->Leave(), root_->Leave();
}

TEST_F(RankWatchTest, LinesInPieces) {
  Open(2);
  RawClient peer(root_->port());
  EXPECT_TRUE(peer.Send("hel"));
  EXPECT_TRUE(peer.Send("lo 1 secret\nfail 1 1"));
  EXPECT_TRUE(peer.Send("4 no mo"));
  EXPECT_TRUE(peer.Send("re teacher\n"));
  ASSERT_TRUE(Fails(*root_));
  EXPECT_ERROR(root_->failure(), kUnavailable, "no more teacher");
}

TEST_F(RankWatchTest, TheSlowestIsKnownToAll) {
  Open(3);
  auto one = Join(1, 3), two = Join(2, 3);
  root_->SetProgress(7);
  one->SetProgress(5);
  two->SetProgress(6);
  EXPECT_TRUE(PollUntil(absl::Seconds(10),
                        [&] { return two->Slowest() == std::make_pair(int64_t{1}, int64_t{5}); }));
  one->Leave(), two->Leave(), root_->Leave();
}

TEST_F(RankWatchTest, GraceEndsTheProcess) {
  EXPECT_EXIT(
      {
        auto options = Options(0, 2);
        options.grace = absl::Milliseconds(100);
        auto root = RankWatch::Listen(options, "127.0.0.1");
        auto other =
            RankWatch::Connect(Options(1, 2), "127.0.0.1", (*root)->port(), absl::Seconds(10));
        if (!(*root)->AwaitAll(absl::Seconds(10)).ok()) _exit(1);
        other->reset();
        absl::SleepFor(absl::Seconds(30));  // a thread that waits for something else
      },
      ::testing::ExitedWithCode(69), "rank 1 has died");
}

TEST_F(RankWatchTest, NobodyListens) {
  Open(2);
  const int port = root_->port();
  root_.reset();
  EXPECT_ERROR(RankWatch::Connect(Options(1, 2), "127.0.0.1", port, absl::Milliseconds(50)),
               kUnavailable, "rank 1 cannot connect to rank 0");
}

}  // namespace
}  // namespace taopd::testing
