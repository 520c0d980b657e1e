package schemas

import "embed"

// Files holds the JSON Schemas (json/*.schema.json: add, fired, timer) and
// asyncapi.yaml.
//
//go:embed json/*.schema.json asyncapi.yaml
var Files embed.FS
