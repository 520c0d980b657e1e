//go:build belfryzones

package app

import (
	"fmt"
	"os"
	"strings"

	"github.com/belfryio/belfry/internal/calendar"
)

// zonesVariable names the environment variable with the zone data of a program that was built
// with the tag belfryzones: a release, "=" and the path of a zip file; see calendar.UseZoneData. Without
// it the program uses the embedded data. Tests of upgrades run an older and a newer build with
// it.
const zonesVariable = "BELFRY_TEST_ZONES"

func init() {
	text := os.Getenv(zonesVariable)
	if text == "" {
		return
	}
	release, path, _ := strings.Cut(text, "=")
	archive, err := os.ReadFile(path)
	if err != nil {
		panic(fmt.Sprintf("environment variable %s: %v", zonesVariable, err))
	}
	calendar.UseZoneData(release, archive)
}
