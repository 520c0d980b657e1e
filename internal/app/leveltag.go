//go:build belfrylevel

package app

import (
	"os"
	"strconv"

	"github.com/belfryio/belfry/internal/store"
)

// levelVariable names the environment variable with the format level that the node
// reads, 1 to store.LevelTest. Without it the level is store.NewestLevel.
const levelVariable = "BELFRY_TEST_LEVEL"

// storeLevel returns the level of the environment, so that tests of upgrades can run a
// node as an older or a newer build would be.
func storeLevel() (store.FormatLevel, error) {
	text := os.Getenv(levelVariable)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < int(store.LevelSharedIndex) || n > int(store.LevelTest) {
		return 0, badConfig("environment variable %s is %.20q; it must be %d to %d", levelVariable, text, store.LevelSharedIndex, store.LevelTest)
	}
	return store.FormatLevel(n), nil
}
