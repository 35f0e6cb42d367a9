// Describes the HTTP server, from RouteDocs.
#pragma once

#include <string>

namespace taopd {

// Returns an OpenAPI 3.1 document.
std::string OpenApiJson();
// Returns a plain page that lists routes and fields and loads nothing from elsewhere.
std::string DocsPage();

}  // namespace taopd
