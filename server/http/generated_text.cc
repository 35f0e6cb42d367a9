#include "server/http/generated_text.h"

#include <algorithm>
#include <vector>

namespace taopd {

GeneratedText::GeneratedText(const Tokenizer* tokenizer, const CompletionRequest& request)
    : decoder_(tokenizer, request.skip_special_tokens),
      matcher_(request.stop, request.include_stop_str_in_output),
      min_tokens_(request.sampling.min_tokens) {}

bool GeneratedText::Push(int32_t id) {
  return matcher_.Append(decoder_.Push(id), /*may_stop=*/++num_tokens_ > min_tokens_);
}

void GeneratedText::Finish() {
  if (!matcher_.matched()) matcher_.Append(decoder_.Finish(), /*may_stop=*/false);
}

GeneratedText FinishedText(const GeneratedTokens& generated, const Tokenizer* tokenizer,
                           const CompletionRequest& request) {
  GeneratedText text(tokenizer, request);
  const size_t last = generated.ids.size() - 1;
  for (size_t i = 0; i < last; ++i) {
    if (text.Push(generated.ids[i])) return text;  // tokens after a stop string have no text
  }
  GeneratedText with_last = text;
  const bool stop_string = with_last.Push(generated.ids[last]);
  const bool stop_token = generated.finish == FinishReason::kStop &&
                          (!stop_string || EndsWithStopToken(generated, request));
  GeneratedText& finished = stop_token && !request.include_stop_str_in_output ? text : with_last;
  finished.Finish();
  return finished;
}

bool EndsWithStopToken(const GeneratedTokens& generated, const CompletionRequest& request) {
  const std::vector<int32_t>& stop_ids = request.sampling.stop_token_ids;
  return generated.finish == FinishReason::kStop &&
         std::find(stop_ids.begin(), stop_ids.end(), generated.ids.back()) != stop_ids.end();
}

}  // namespace taopd
