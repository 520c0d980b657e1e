package httpapi

import (
	_ "embed"
	"net/http"
)

// documentPath is the path of the description of the API. It needs no token.
const documentPath = Prefix + "openapi.yaml"

// Document is openapi.yaml: the description of the API in OpenAPI 3.1.
//
//go:embed openapi.yaml
var Document []byte

func serveDocument(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(Document) // fails only if the client has left
}
