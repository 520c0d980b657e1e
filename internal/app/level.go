//go:build !belfrylevel

package app

import "github.com/belfryio/belfry/internal/store"

// storeLevel is the format level that the node reads. 0 means store.NewestLevel. Only
// a program built with the tag belfrylevel, which tests of upgrades use, can read
// another level (leveltag.go).
func storeLevel() (store.FormatLevel, error) { return 0, nil }
