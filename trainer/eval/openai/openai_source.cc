#include "trainer/eval/openai/openai_source.h"

#include <utility>

#include "common/io/jsonl.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

// Reads the reply to a completion or to a chat, which hold their texts in different fields.
absl::StatusOr<EvalResponse> ReadResponse(const Json& reply, bool chat) {
  if (!reply.is_object()) return DataLoss("the reply is not a JSON object");
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
  // The content is null if a reasoning model was cut while it was thinking.
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
    if (tokens != usage->end() && tokens->is_number_unsigned()) {
      response.num_tokens = tokens->get<int64_t>();
    }
  }
  return response;
}

}  // namespace

OpenAiSource::~OpenAiSource() { Cancel(); }

void OpenAiSource::Cancel() {
  absl::MutexLock lock(&mutex_);
  stop_.request_stop();
}

void OpenAiSource::Generate(const std::vector<EvalTask>& tasks, const EvalSampling& sampling,
                            Done done) {
  std::stop_source stop;
  {
    absl::MutexLock lock(&mutex_);
    stop_ = stop;
  }
  const size_t num_tasks = tasks.size();  // the caller may drop `tasks` once the last done has run
  for (size_t i = 0; i < num_tasks; ++i) {
    pool_.Enqueue([this, i, &task = tasks[i], sampling, done, stop]() mutable {
      if (stop.stop_requested())
        return done(i, absl::CancelledError("not sent: the evaluation has failed or was stopped"));
      auto response = Ask(task, sampling, stop.get_token());
      // After a final failure the evaluation ends without the other responses.
      if (!response.ok()) stop.request_stop();
      done(i, std::move(response));
    });
  }
}

absl::StatusOr<EvalResponse> OpenAiSource::Ask(const EvalTask& task, const EvalSampling& sampling,
                                               const std::stop_token& stop) {
  const PromptRecord& problem = *task.problem;
  const bool chat = !problem.messages.is_null();
  const std::string path = chat ? "/chat/completions" : "/completions";
  Json body = client_.PromptBody(model_, problem.messages, problem.prompt_ids, problem.prompt);
  body["max_tokens"] = sampling.max_tokens;
  body["temperature"] = sampling.temperature;
  body["top_p"] = sampling.top_p;
  body["seed"] = task.seed >> 11;  // servers accept signed or 53-bit integers
  TAOPD_ASSIGN_OR_RETURN(
      const std::string reply,
      Annotate(client_.Send(path, JsonText(body), absl::Seconds(options_.timeout_s),
                            /*on_data=*/nullptr, stop),
               problem.id));
  const std::string where = Concat(problem.id, ": ", client_.AddressOf(path));
  TAOPD_ASSIGN_OR_RETURN(const Json json, ParseOrderedJson(reply, where));
  return Annotate(ReadResponse(json, chat), where);
}

absl::StatusOr<std::unique_ptr<OpenAiSource>> OpenAiSource::Connect(const OpenAiOptions& options,
                                                                    Clock* clock) {
  TAOPD_ASSIGN_OR_RETURN(ServerAddress server, ParseOpenAiUrl(options.url));
  std::unique_ptr<OpenAiSource> source(new OpenAiSource(options, std::move(server), clock));
  TAOPD_ASSIGN_OR_RETURN(source->model_, source->client_.ChooseModel());
  return source;
}

}  // namespace taopd
