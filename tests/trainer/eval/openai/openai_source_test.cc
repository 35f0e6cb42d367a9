#include "trainer/eval/openai/openai_source.h"

#include <absl/synchronization/blocking_counter.h>
#include <absl/synchronization/notification.h>

#include <atomic>
#include <mutex>
#include <optional>

#include "tests/support/http_listener.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

using Json = nlohmann::ordered_json;

// A server whose replies a test defines.
class Server {
 public:
  using Handler = std::function<void(const httplib::Request&, httplib::Response&)>;
  explicit Server(
      Handler handler,
      const std::string& models = R"({"object":"list","data":[{"id":"tiny"},{"id":"big"}]})",
      const std::string& prefix = "/v1") {
    server_.Get(prefix + "/models",
                [this, models](const httplib::Request& request, httplib::Response& reply) {
                  Note(request);
                  reply.set_content(models, "application/json");
                });
    for (const char* path : {"/completions", "/chat/completions"}) {
      server_.Post(prefix + path,
                   [this, handler](const httplib::Request& request, httplib::Response& reply) {
                     Note(request);
                     handler(request, reply);
                   });
    }
    listener_.emplace(&server_);
  }
  std::string url() const { return "http://" + listener_->address(); }
  std::vector<httplib::Request> requests() {
    std::lock_guard<std::mutex> lock(mutex_);
    return requests_;
  }

 private:
  void Note(const httplib::Request& request) {
    std::lock_guard<std::mutex> lock(mutex_);
    requests_.push_back(request);
  }
  std::mutex mutex_;
  std::vector<httplib::Request> requests_;
  httplib::Server server_;
  std::optional<HttpListener> listener_;
};

OpenAiOptions Options(const Server& server) {
  OpenAiOptions options;
  options.url = server.url();
  options.concurrency = 4;
  options.first_pause_s = 0.01;
  options.max_retries = 2;
  options.timeout_s = 60;
  return options;
}

std::string TextReply(const std::string& text) {
  return Json{
      {"choices", Json::array({Json{{"index", 0}, {"text", text}, {"finish_reason", "stop"}}})},
      {"usage", {{"prompt_tokens", 3}, {"completion_tokens", 7}}}}
      .dump();
}

std::vector<absl::StatusOr<EvalResponse>> AskAll(OpenAiSource* source,
                                                 const std::vector<PromptRecord>& problems) {
  std::vector<EvalTask> tasks(problems.size());
  for (size_t i = 0; i < problems.size(); ++i) {
    tasks[i].problem = &problems[i];
    tasks[i].problem_index = static_cast<int64_t>(i);
    tasks[i].seed = UINT64_MAX - i;
  }
  std::vector<absl::StatusOr<EvalResponse>> responses(problems.size(),
                                                      absl::UnknownError("not called"));
  absl::BlockingCounter pending(static_cast<int>(problems.size()));
  source->Generate(tasks, EvalSampling{0.5, 0.9, 33},
                   [&](size_t i, absl::StatusOr<EvalResponse> response) {
                     responses[i] = std::move(response);
                     pending.DecrementCount();
                   });
  pending.Wait();
  return responses;
}

PromptRecord TextPrompt(const std::string& text) { return {.id = "f:1", .prompt = text}; }
PromptRecord Chat(const std::string& text) {
  return {.id = "f:2", .messages = Json::array({Json{{"role", "user"}, {"content", text}}})};
}

TEST(OpenAiSource, TextIdsAndChats) {
  Server server([](const httplib::Request& request, httplib::Response& reply) {
    const Json body = Json::parse(request.body);
    EXPECT_EQ(body["model"], "tiny");
    EXPECT_EQ(body["max_tokens"], 33);
    EXPECT_EQ(body["temperature"], 0.5);
    EXPECT_EQ(body["top_p"], 0.9);
    EXPECT_TRUE(body["seed"].is_number_unsigned() &&
                body["seed"].get<uint64_t>() < (uint64_t{1} << 53));
    if (request.path == "/v1/chat/completions") {
      EXPECT_EQ(body["messages"][0]["content"], "hi");
      EXPECT_EQ(body["chat_template_kwargs"]["enable_thinking"], false);
      reply.set_content(
          R"({"choices":[{"message":{"role":"assistant","content":"chat"},"finish_reason":"length"}]})",
          "application/json");
    } else {
      reply.set_content(TextReply("to " + body["prompt"].dump()), "application/json");
    }
  });
  OpenAiOptions options = Options(server);
  options.chat_template_kwargs = {{"enable_thinking", false}};
  ASSERT_OK_AND_ASSIGN(auto source, OpenAiSource::Connect(options));
  EXPECT_EQ(source->model(), "tiny");
  const PromptRecord ids = {.prompt_ids = {4, 5}};
  const auto responses = AskAll(source.get(), {TextPrompt("a\xff"), ids, Chat("hi")});
  for (const auto& response : responses) ASSERT_OK(response);
  EXPECT_THAT(responses[0]->text, HasSubstr("to \"a"));
  EXPECT_EQ(responses[0]->num_tokens, 7);
  EXPECT_FALSE(responses[0]->truncated);
  EXPECT_EQ(responses[1]->text, "to [4,5]");
  EXPECT_EQ(responses[2]->text, "chat");
  EXPECT_TRUE(responses[2]->truncated);
  EXPECT_EQ(responses[2]->num_tokens, -1);
}

TEST(ReadApiKey, AKeyThatNoHeaderCarriesIsRefused) {
  OpenAiOptions options;
  ::setenv("OPENAI_API_KEY", "secret\n", /*overwrite=*/1);
  EXPECT_ERROR(ReadApiKey("", &options), kInvalidArgument, "OPENAI_API_KEY: the API key has a");
  ::unsetenv("OPENAI_API_KEY");
}

TEST(OpenAiSource, RetriesWhatMayPass) {
  std::atomic<int> calls{0};
  Server server([&](const httplib::Request&, httplib::Response& reply) {
    constexpr int kPassing[] = {503, 408, 429};
    const int call = calls++;
    if (call >= 3) return reply.set_content(TextReply("x"), "application/json");
    reply.status = kPassing[call];
    if (reply.status == 429) reply.set_header("Retry-After", "5");
  });
  OpenAiOptions options = Options(server);
  options.max_retries = 3;
  options.first_pause_s = 0.25;
  ManualClock clock;
  ASSERT_OK_AND_ASSIGN(auto source, OpenAiSource::Connect(options, &clock));
  const absl::Time start = clock.Now();
  EXPECT_OK(AskAll(source.get(), {TextPrompt("a")})[0]);
  EXPECT_EQ(source->num_retries(), 3);
  // The first pause, twice that, and then the server's Retry-After instead of four times that.
  EXPECT_EQ(clock.Now() - start, absl::Seconds(0.25 + 0.5 + 5));
}

TEST(OpenAiSource, EndsAfterItsRetriesAndAsksTheRestNoMore) {
  std::atomic<int> calls{0};
  Server server([&](const httplib::Request&, httplib::Response& reply) {
    ++calls;
    reply.status = 500;
    reply.set_content(R"({"error":{"message":"out of KV cache","type":"x"}})", "application/json");
  });
  OpenAiOptions options = Options(server);
  options.concurrency = 1;
  ASSERT_OK_AND_ASSIGN(auto source, OpenAiSource::Connect(options));
  const auto responses = AskAll(source.get(), std::vector<PromptRecord>(50, TextPrompt("a")));
  EXPECT_ERROR(responses[0], kUnavailable, "HTTP 500: out of KV cache");
  EXPECT_THAT(std::string(responses[0].status().message()), HasSubstr("after 3 attempts"));
  for (size_t i = 1; i < responses.size(); ++i)
    EXPECT_TRUE(absl::IsCancelled(responses[i].status()));
  EXPECT_EQ(calls, 3);
}

TEST(OpenAiSource, CancelEndsTheTasksUntilTheNextGenerate) {
  OpenAiSource* cancelled = nullptr;
  absl::Notification over;
  std::atomic<int> calls{0};
  Server server([&](const httplib::Request&, httplib::Response& reply) {
    if (calls++ == 0) {
      cancelled->Cancel();
      over.WaitForNotification();
    }
    reply.set_content(TextReply("x"), "application/json");
  });
  OpenAiOptions options = Options(server);
  options.concurrency = 1;
  options.timeout_s = 600;
  ASSERT_OK_AND_ASSIGN(auto source, OpenAiSource::Connect(options));
  cancelled = source.get();
  for (const auto& response : AskAll(source.get(), std::vector<PromptRecord>(50, TextPrompt("a"))))
    EXPECT_TRUE(absl::IsCancelled(response.status())) << response.status();
  EXPECT_EQ(calls, 1);
  EXPECT_OK(AskAll(source.get(), {TextPrompt("a")})[0]);
  over.Notify();
}

TEST(OpenAiSource, AFinalFailureEndsTheRequestsInFlight) {
  absl::Notification slow_has_come, over;
  Server server([&](const httplib::Request& request, httplib::Response& reply) {
    if (Json::parse(request.body)["prompt"] == "slow") {
      slow_has_come.Notify();
      return over.WaitForNotification();
    }
    slow_has_come.WaitForNotification();
    reply.status = 400;
  });
  OpenAiOptions options = Options(server);
  options.timeout_s = 600;
  ASSERT_OK_AND_ASSIGN(auto source, OpenAiSource::Connect(options));
  const auto responses = AskAll(source.get(), {TextPrompt("slow"), TextPrompt("bad")});
  EXPECT_TRUE(absl::IsCancelled(responses[0].status())) << responses[0].status();
  EXPECT_ERROR(responses[1], kInvalidArgument, "HTTP 400");
  over.Notify();
}

TEST(OpenAiSource, RefusalsAreNotRepeated) {
  for (const auto& [status, code, words] :
       {std::tuple{400, kInvalidArgument, "HTTP 400: too long"},
        std::tuple{401, kPermissionDenied, "MY_KEY"}, std::tuple{404, kNotFound, "HTTP 404"}}) {
    std::atomic<int> calls{0};
    Server server([&, status = status](const httplib::Request&, httplib::Response& reply) {
      ++calls;
      reply.status = status;
      reply.set_content(R"({"error":{"message":"too long"}})", "application/json");
    });
    OpenAiOptions options = Options(server);
    options.api_key_env = "MY_KEY";
    ASSERT_OK_AND_ASSIGN(auto source, OpenAiSource::Connect(options));
    EXPECT_ERROR(AskAll(source.get(), {TextPrompt("a")})[0], code, words);
    EXPECT_EQ(calls, 1);
  }
}

TEST(OpenAiSource, BadRepliesAreErrors) {
  for (const char* body : {"", "nonsense", "[]", "{}", R"({"choices":[]})", R"({"choices":[{}]})",
                           R"({"choices":[{"text":5}]})", R"({"choices":5})"}) {
    Server server([&](const httplib::Request&, httplib::Response& reply) {
      reply.set_content(body, "application/json");
    });
    ASSERT_OK_AND_ASSIGN(auto source, OpenAiSource::Connect(Options(server)));
    const auto response = AskAll(source.get(), {TextPrompt("a")})[0];
    ASSERT_FALSE(response.ok()) << body;
    EXPECT_THAT(std::string(response.status().message()),
                HasSubstr(server.url() + "/v1/completions"))
        << body;
    EXPECT_EQ(source->num_retries(), 0) << body;
  }
}

TEST(OpenAiSource, ASlowServerIsATimeout) {
  absl::Notification stop;
  Server server([&](const httplib::Request&, httplib::Response&) { stop.WaitForNotification(); });
  OpenAiOptions options = Options(server);
  options.timeout_s = 0.2;
  options.max_retries = 0;
  {
    ASSERT_OK_AND_ASSIGN(auto source, OpenAiSource::Connect(options));
    EXPECT_ERROR(AskAll(source.get(), {TextPrompt("a")})[0], kUnavailable, "/v1/completions");
  }
  stop.Notify();
}

TEST(OpenAiSource, ConcurrencyIsLimited) {
  // The first requests wait until all of them have arrived.
  absl::Mutex mutex;
  int64_t num_open = 0, most_open = 0;
  bool is_late = false;
  Server server([&](const httplib::Request&, httplib::Response& reply) {
    {
      absl::MutexLock lock(&mutex);
      most_open = std::max(most_open, ++num_open);
      const auto together = [&] { return most_open >= 4 || is_late; };
      // The time limit ends a failing test.
      is_late |= !mutex.AwaitWithTimeout(absl::Condition(&together), absl::Seconds(60));
      --num_open;
    }
    reply.set_content(TextReply("x"), "application/json");
  });
  ASSERT_OK_AND_ASSIGN(auto source, OpenAiSource::Connect(Options(server)));
  for (const auto& response : AskAll(source.get(), std::vector<PromptRecord>(40, TextPrompt("a"))))
    EXPECT_OK(response);
  EXPECT_EQ(most_open, 4);
}

TEST(OpenAiSource, TheApiKeyIsSentAndThePrefixKept) {
  Server server(
      [](const httplib::Request&, httplib::Response& reply) {
        reply.set_content(TextReply("x"), "application/json");
      },
      R"({"data":[{"id":"tiny"},{"id":"big"}]})", "/openai/v1");
  OpenAiOptions options = Options(server);
  options.url += "/openai/v1/";
  options.api_key = "secret";
  options.model = "big";
  ASSERT_OK_AND_ASSIGN(auto source, OpenAiSource::Connect(options));
  EXPECT_EQ(source->model(), "big");
  EXPECT_OK(AskAll(source.get(), {TextPrompt("a")})[0]);
  const std::vector<httplib::Request> requests = server.requests();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].path, "/openai/v1/models");
  EXPECT_EQ(requests[1].path, "/openai/v1/completions");
  for (const httplib::Request& request : requests) {
    EXPECT_EQ(request.get_header_value("Authorization"), "Bearer secret");
  }
}

TEST(OpenAiSource, ConnectNamesWhatIsWrong) {
  Server server([](const httplib::Request&, httplib::Response&) {});
  OpenAiOptions options = Options(server);
  options.model = "other";
  EXPECT_ERROR(OpenAiSource::Connect(options), kNotFound,
               "no model \"other\"; it has \"tiny\", \"big\"");
  for (const char* url : {"", "127.0.0.1:8000", "http://", "ftp://x", "http:///v1", "http://a b"}) {
    options.url = url;
    EXPECT_ERROR(OpenAiSource::Connect(options), kInvalidArgument, "is not a URL");
  }
  options.url = "http://127.0.0.1:1";
  options.max_retries = 1;
  EXPECT_ERROR(OpenAiSource::Connect(options), kUnavailable, "http://127.0.0.1:1/v1/models");
  Server empty([](const httplib::Request&, httplib::Response&) {}, R"({"data":[]})");
  EXPECT_ERROR(OpenAiSource::Connect(Options(empty)), kNotFound, "lists no model");
}

}  // namespace
}  // namespace taopd::testing
