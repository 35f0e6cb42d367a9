// The purposes of the HTTP server's routes and the fields of their bodies. GET /openapi.json and
// GET /docs are made from them (routes/openapi.h). ReadBody reads the fields that no protocol
// reads. A test compares the others, and the routes, with the code.
#pragma once

#include <vector>

namespace taopd {

enum class FieldUse {
  kRead,     // by the function that reads the body, which may refuse values
  kIgnored,  // has no effect; its type is checked
  kRefused,  // not supported: only a value that changes nothing is accepted
};

struct FieldDoc {
  const char* name;
  // JSON type: "string", "integer", "number", "boolean", "array", "object", "any".
  const char* type;
  const char* text;
  FieldUse use = FieldUse::kRead;
};

struct RouteDoc {
  const char* method;
  const char* path;
  const char* text;
  // The fields of a POST body, and of the object sampling_params in it.
  std::vector<FieldDoc> fields = {};
  std::vector<FieldDoc> sampling_fields = {};
  const char* answer_type = "application/json";
};

const std::vector<RouteDoc>& RouteDocs();

}  // namespace taopd
