// The fields that say what form a generated text has: response_format, structured_outputs, and the
// grammar that they come to. Names and messages are vLLM's.
#pragma once

#include <string>

#include "server/generation/generation_request.h"
#include "server/http/request/json_fields.h"
#include "server/serving/serving_state.h"

namespace taopd {

// Reads both fields. The keys of a schema keep their order, which is that of the generated text.
absl::Status ReadStructuredOutput(JsonFields& fields, GenerationRequest* request);

// Returns the text of a structural tag in xgrammar's present form. `field` names it in messages.
absl::StatusOr<std::string> StructuralTagText(const std::string& text, const std::string& field);

// Compiles the request's grammar, if it has one, and waits for it. Nothing is compiled for a
// request that the engine would refuse. To be called once the request is complete, on the thread
// that answers it.
absl::Status CompileGrammar(const Caller& caller, const ServedModel& model,
                            GenerationRequest* request);

}  // namespace taopd
