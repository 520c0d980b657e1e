package natsapi

import (
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/belfryio/belfry/schemas"
)

// TestAsyncAPIHasEveryVerb: asyncapi.yaml describes exactly the verbs that the router serves,
// and each has an operation.
func TestAsyncAPIHasEveryVerb(t *testing.T) {
	t.Parallel()
	raw, err := schemas.Files.ReadFile("asyncapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Channels   map[string]struct{ Address string }
		Operations map[string]struct {
			Channel map[string]string
		}
	}
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, o := range doc.Operations {
		used[strings.TrimPrefix(o.Channel["$ref"], "#/channels/")] = true
	}
	described := map[string]bool{}
	for name, c := range doc.Channels {
		if verb, ok := strings.CutPrefix(c.Address, schemas.SubjectAPIPrefix); ok {
			described[verb] = true
			if !used[name] {
				t.Errorf("the channel %s has no operation", name)
			}
		}
	}
	for _, v := range append((&api{}).verbs(nil, true), (&api{}).clockVerbs(nil)...) {
		if !described[v.name] {
			t.Errorf("asyncapi.yaml does not describe %s%s", schemas.SubjectAPIPrefix, v.name)
		}
		delete(described, v.name)
	}
	for verb := range described {
		t.Errorf("asyncapi.yaml describes %s%s, which the router does not serve", schemas.SubjectAPIPrefix, verb)
	}
}
