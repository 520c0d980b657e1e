package store

import (
	"fmt"
	"slices"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Difference is one setting of a stream that differs from the configuration.
type Difference struct {
	Stream, Setting string
	Have, Want      any
	// Missing is true if there is no such stream.
	Missing bool
	// Fatal is true if a node with this configuration refuses to start. A node removes other
	// differences when it starts.
	Fatal bool
}

// Differences compares the streams of a store with the streams that a node with this
// configuration would make. Errors: schemas.CodeConfig for an invalid configuration.
func Differences(have []StreamHealth, cfg Config, shards int) ([]Difference, error) {
	if cfg.Node == "" {
		cfg.Node = "look"
	}
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	configs := &streamConfigs{cfg: &cfg, shards: shards, shrink: 1}
	var out []Difference
	for _, want := range slices.Concat(configs.base(), configs.rest()) {
		i := slices.IndexFunc(have, func(h StreamHealth) bool { return h.Name == want.Name })
		if i < 0 {
			out = append(out, Difference{Stream: want.Name, Missing: true})
			continue
		}
		out = append(out, differences(have[i].Config, want, cfg.FiredMaxPerService)...)
	}
	return out, nil
}

// differences compares one stream with the wanted configuration.
func differences(have, want jet.StreamConfig, perService int) []Difference {
	var out []Difference
	differ := func(setting string, is, should any, fatal bool) {
		if fmt.Sprint(is) != fmt.Sprint(should) {
			out = append(out, Difference{Stream: want.Name, Setting: setting, Have: is, Want: should, Fatal: fatal})
		}
	}
	differ("storage", have.Storage, want.Storage, true)
	differ("retention", have.Retention, want.Retention, true)
	if want.Name == schemas.StreamFired && have.MaxBytes != want.MaxBytes && perService == 0 {
		// The share depends on the stream's actual bytes, which were fitted to the server.
		want.MaxMsgsPerSubject = (&streamConfigs{cfg: &Config{}}).perService(have.MaxBytes)
	}
	differ("messages a subject", max(have.MaxMsgsPerSubject, 0), want.MaxMsgsPerSubject, want.Name != schemas.StreamFired)
	differ("discard", have.Discard, want.Discard, true)
	differ("subjects", have.Subjects, want.Subjects, !sharesRejected(have, want))
	differ("replicas", have.Replicas, want.Replicas, false)
	differ("maximum age", have.MaxAge, want.MaxAge, false)
	differ("dedup window", have.Duplicates, want.Duplicates, false)
	differ("bytes of a message", have.MaxMsgSize, want.MaxMsgSize, false)
	differ("direct gets", have.AllowDirect, true, false)
	differ("TTLs", have.AllowMsgTTL, want.AllowMsgTTL, false)
	return out
}
