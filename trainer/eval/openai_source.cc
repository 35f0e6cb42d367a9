#include "trainer/eval/openai_source.h"

#include <absl/strings/numbers.h>
#include <absl/time/clock.h>
#include <absl/time/time.h>
#include <httplib.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "common/io/jsonl.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxReplyBytes = size_t{64} << 20;

struct Url {
  std::string host;    // scheme://host:port
  std::string prefix;  // path before /completions
};

absl::StatusOr<Url> ParseUrl(const std::string& text) {
  const bool http = text.compare(0, 7, "http://") == 0, https = text.compare(0, 8, "https://") == 0;
  const size_t begin = http ? 7 : 8;
  if ((!http && !https) || text.size() == begin || text[begin] == '/' ||
      text.find_first_of(" \t\n?#") != std::string::npos) {
    return InvalidArgument("endpoint \"", text, "\" is not a URL such as http://127.0.0.1:8000");
  }
  const size_t slash = text.find('/', begin);
  Url url;
  url.host = text.substr(0, slash);
  url.prefix = slash == std::string::npos ? "" : text.substr(slash);
  while (!url.prefix.empty() && url.prefix.back() == '/') url.prefix.pop_back();
  if (url.prefix.empty()) url.prefix = "/v1";
  return url;
}

// The message of an error reply in any of the shapes that servers use, or the start of the body.
std::string ServersWords(const std::string& body) {
  const Json value = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (value.is_object()) {
    const auto error = value.find("error");
    if (error != value.end() && error->is_object() && error->contains("message") &&
        error->at("message").is_string()) {
      return error->at("message").get<std::string>();
    }
    if (error != value.end() && error->is_string()) return error->get<std::string>();
    for (const char* key : {"message", "detail"}) {
      if (value.contains(key) && value.at(key).is_string()) return value.at(key).get<std::string>();
    }
  }
  return body.substr(0, 300);
}

class HttpSource final : public OpenAiSource {
 public:
  HttpSource(const OpenAiOptions& options, Url url) : options_(options), url_(std::move(url)) {}
  ~HttpSource() override {
    stopping_ = true;
    for (std::thread& worker : workers_) worker.join();
  }

  absl::Status Start() {
    httplib::Client client(url_.host);
    SetTimeouts(&client, 30);
    const auto reply = Try(&client, "GET", "/models", "");
    if (!reply.ok() && absl::IsNotFound(reply.status()) && !options_.model.empty()) {
      model_ = options_.model;  // a server without the listing
      return absl::OkStatus();
    }
    TAOPD_RETURN_IF_ERROR(reply.status());
    std::string known;
    const auto data = reply->is_object() ? reply->find("data") : reply->end();
    if (!reply->is_object() || data == reply->end() || !data->is_array()) {
      return Unavailable(url_.host, url_.prefix,
                         "/models: the reply holds no list \"data\" of models");
    }
    for (const Json& entry : *data) {
      if (!entry.is_object() || !entry.contains("id") || !entry.at("id").is_string()) continue;
      const auto id = entry.at("id").get<std::string>();
      if (model_.empty() && (options_.model.empty() || options_.model == id)) model_ = id;
      known += (known.empty() ? "\"" : ", \"") + id + "\"";
    }
    if (!model_.empty()) return absl::OkStatus();
    if (options_.model.empty()) return NotFound(url_.host, ": the server lists no model");
    return NotFound(url_.host, ": the server has no model \"", options_.model, "\"; it has ",
                    known);
  }

  const std::string& model() const override { return model_; }
  int64_t num_retries() const override { return num_retries_; }

  void Generate(const std::vector<EvalTask>& tasks, const EvalSampling& sampling,
                std::function<void(size_t, absl::StatusOr<EvalResponse>)> done) override {
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
    next_ = 0;
    failed_ = false;
    const auto num_workers = std::min<size_t>(tasks.size(), options_.concurrency);
    for (size_t w = 0; w < num_workers; ++w) {
      // The caller may drop `tasks` once the last done has run, so the end is a copy.
      workers_.emplace_back([this, &tasks, num_tasks = tasks.size(), sampling, done] {
        httplib::Client client(url_.host);
        SetTimeouts(&client, options_.timeout_s);
        client.set_keep_alive(true);
        for (size_t i = next_++; i < num_tasks; i = next_++) {
          // After a failure that no retry helps, the rest need not be asked.
          if (failed_ || stopping_) {
            done(i, absl::CancelledError("not asked: an earlier request failed"));
            continue;
          }
          auto response = Ask(&client, tasks[i], sampling);
          if (!response.ok()) failed_ = true;
          done(i, std::move(response));
        }
      });
    }
  }

 private:
  static void SetTimeouts(httplib::Client* client, double seconds) {
    client->set_connection_timeout(
        std::chrono::milliseconds(static_cast<int64_t>(std::min(seconds, 30.0) * 1000)));
    client->set_read_timeout(std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)));
    client->set_write_timeout(std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)));
  }

  absl::StatusOr<EvalResponse> Ask(httplib::Client* client, const EvalTask& task,
                                   const EvalSampling& sampling) {
    const PromptRecord& problem = *task.problem;
    const bool chat = !problem.messages.is_null();
    Json body = {{"model", model_}};
    if (chat) {
      body["messages"] = problem.messages;
      if (options_.chat_template_kwargs.is_object() && !options_.chat_template_kwargs.empty()) {
        body["chat_template_kwargs"] = options_.chat_template_kwargs;
      }
    } else if (!problem.prompt_ids.empty()) {
      body["prompt"] = problem.prompt_ids;
    } else {
      body["prompt"] = problem.prompt;
    }
    body["max_tokens"] = sampling.max_tokens;
    body["temperature"] = sampling.temperature;
    body["top_p"] = sampling.top_p;
    body["seed"] = task.seed >> 11;  // servers take signed or 53-bit integers
    const std::string path = chat ? "/chat/completions" : "/completions";
    auto reply =
        Try(client, "POST", path, body.dump(-1, ' ', false, Json::error_handler_t::replace));
    if (!reply.ok()) return Annotate(reply.status(), problem.id);
    auto response = ReadResponse(*reply, chat);
    if (!response.ok())
      return Annotate(response.status(), Concat(problem.id, ": ", url_.host, url_.prefix, path));
    return response;
  }

  static absl::StatusOr<EvalResponse> ReadResponse(const Json& reply, bool chat) {
    const auto choices = reply.find("choices");
    if (choices == reply.end() || !choices->is_array() || choices->empty() ||
        !choices->front().is_object()) {
      return DataLoss("the reply holds no \"choices\"");
    }
    const Json& choice = choices->front();
    const Json* text = nullptr;
    if (chat && choice.contains("message") && choice.at("message").is_object()) {
      const Json& message = choice.at("message");
      if (message.contains("content")) text = &message.at("content");
    } else if (!chat && choice.contains("text")) {
      text = &choice.at("text");
    }
    EvalResponse response;
    // A reasoning model that was cut while it thought has null content.
    if (text == nullptr || (!text->is_string() && !text->is_null())) {
      return DataLoss("the reply's choice holds no text in ",
                      chat ? "\"message.content\"" : "\"text\"");
    }
    if (text->is_string()) response.text = text->get<std::string>();
    const auto finish = choice.find("finish_reason");
    response.truncated = finish != choice.end() && *finish == "length";
    response.num_tokens = -1;
    if (const auto usage = reply.find("usage"); usage != reply.end() && usage->is_object()) {
      const auto tokens = usage->find("completion_tokens");
      if (tokens != usage->end() && tokens->is_number_unsigned())
        response.num_tokens = tokens->get<int64_t>();
    }
    return response;
  }

  // One request with its retries; the parsed body of a 200.
  absl::StatusOr<Json> Try(httplib::Client* client, const std::string& method,
                           const std::string& path, const std::string& body) {
    absl::Duration pause = absl::Seconds(options_.first_pause_s);
    for (int64_t attempt = 0;; ++attempt) {
      absl::Duration asked_pause;
      bool may_pass = false;
      absl::StatusOr<Json> reply = Send(client, method, path, body, &may_pass, &asked_pause);
      if (reply.ok() || !may_pass) return reply;
      if (attempt >= options_.max_retries || stopping_ || failed_) {
        return Annotate(reply.status(), Concat("after ", attempt + 1, " attempts"));
      }
      ++num_retries_;
      Sleep(std::max(pause, std::min(asked_pause, absl::Seconds(60))));
      pause = std::min(2 * pause, absl::Seconds(30));
    }
  }

  // In short pieces, so that an evaluation that fails elsewhere ends soon.
  void Sleep(absl::Duration duration) {
    const absl::Time end = absl::Now() + duration;
    while (absl::Now() < end && !stopping_ && !failed_) {
      absl::SleepFor(std::min(end - absl::Now(), absl::Milliseconds(100)));
    }
  }

  absl::StatusOr<Json> Send(httplib::Client* client, const std::string& method,
                            const std::string& path, const std::string& body, bool* may_pass,
                            absl::Duration* asked_pause) {
    httplib::Request request;
    request.method = method;
    request.path = url_.prefix + path;
    request.set_header("Accept", "application/json");
    if (!options_.api_key.empty())
      request.set_header("Authorization", "Bearer " + options_.api_key);
    if (!body.empty()) {
      request.set_header("Content-Type", "application/json");
      request.body = body;
    }
    std::string received;
    bool too_long = false;
    request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
      too_long = received.size() + size > kMaxReplyBytes;
      if (!too_long) received.append(data, size);
      return !too_long;
    };
    const std::string where = url_.host + request.path;
    const httplib::Result result = client->send(request);
    if (too_long)
      return ResourceExhausted(where, ": the reply is longer than ", kMaxReplyBytes, " bytes");
    if (!result) {
      *may_pass = true;
      return Unavailable(where, ": ", httplib::to_string(result.error()));
    }
    const int status = result->status;
    if (status == 200) {
      auto value = ParseOrderedJson(received, where);
      if (!value.ok()) return value.status();
      if (!value->is_object()) return DataLoss(where, ": the reply is not a JSON object");
      return value;
    }
    const std::string message = Concat(where, ": HTTP ", status, ": ", ServersWords(received));
    if (status == 401 || status == 403) {
      return absl::PermissionDeniedError(Concat(
          message, options_.api_key.empty() ? " (no API key was sent" : " (an API key was sent",
          options_.api_key_env.empty()
              ? ""
              : "; it is read from the environment variable " + options_.api_key_env,
          ")"));
    }
    *may_pass = status == 408 || status == 429 || status >= 500;
    if (*may_pass) {
      int64_t seconds = 0;
      const std::string header = result->get_header_value("Retry-After");
      if (absl::SimpleAtoi(header, &seconds) && seconds > 0) *asked_pause = absl::Seconds(seconds);
      return Unavailable(message);
    }
    if (status == 404) return NotFound(message);
    return InvalidArgument(message);
  }

  const OpenAiOptions options_;
  const Url url_;
  std::string model_;
  std::vector<std::thread> workers_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> num_retries_{0};
};

}  // namespace

absl::StatusOr<std::unique_ptr<OpenAiSource>> OpenAiSource::Connect(const OpenAiOptions& options) {
  TAOPD_ASSIGN_OR_RETURN(Url url, ParseUrl(options.url));
  auto source = std::make_unique<HttpSource>(options, std::move(url));
  TAOPD_RETURN_IF_ERROR(source->Start());
  return source;
}

}  // namespace taopd
