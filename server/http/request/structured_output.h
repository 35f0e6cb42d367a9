// The form that a request demands of its texts: vLLM's fields for it, and the compiled grammar.
// Messages are vLLM's.
#pragma once

#include "server/generation/generation_request.h"
#include "server/http/request/json_fields.h"
#include "server/serving/serving_state.h"

namespace taopd {

// Reads response_format and structured_outputs. The keys of a schema keep their order, which is
// that of the generated text.
absl::Status ReadStructuredOutput(JsonFields& fields, GenerationRequest* request);

// Compiles the request's grammar, if it has one, and waits for it. Nothing is compiled for a
// request that the engine would refuse. Call it when the request is complete, on the thread that
// answers it.
absl::Status CompileGrammar(const Caller& caller, const ServedModel& model,
                            GenerationRequest* request);

}  // namespace taopd
