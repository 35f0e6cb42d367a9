// What the routes of the HTTP server are for and which fields their bodies have: the source of
// GET /openapi.json and GET /docs. A test holds the tables to the routes and to the code that reads
// the fields.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace taopd {

struct FieldDoc {
  const char* name;
  const char* type;  // of JSON: "string", "integer", "number", "boolean", "array", "object", "any"
  const char* text;
};

struct RouteDoc {
  const char* method;
  const char* path;
  const char* text;
  // Of a POST body, and of the object sampling_params in it.
  std::vector<FieldDoc> fields;
  std::vector<FieldDoc> sampling_fields;
  const char* answer_type = "application/json";
};

const std::vector<RouteDoc>& RouteDocs();

}  // namespace taopd
