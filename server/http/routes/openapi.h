// The server's descriptions of itself, made from the table of fields (request/field_table.h).
#pragma once

#include <string>

namespace taopd {

// Returns an OpenAPI 3.1 document, for GET /openapi.json.
std::string OpenApiJson();
// Returns a plain page for GET /docs that lists routes and fields and loads nothing from elsewhere.
std::string DocsPage();

}  // namespace taopd
