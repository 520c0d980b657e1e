package main

import (
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/internal/calendar"
)

func (c *cli) versionCommand() *cobra.Command {
	return c.printing(&cobra.Command{
		Use:   "version",
		Short: "Show the version, the commit and the versions of Go and NATS",
		Args:  exactly(0),
		RunE: func(*cobra.Command, []string) error {
			commit := commit(debug.ReadBuildInfo())
			if c.json() {
				return c.printJSON(map[string]string{"version": version, "commit": commit, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
					"nats_server": server.VERSION, "nats_go": nats.Version, "tzdata": calendar.ZoneDataVersion})
			}
			return c.printText("belfry", version, "commit", commit, "go", runtime.Version(), "platform", runtime.GOOS+"/"+runtime.GOARCH,
				"nats-server", server.VERSION, "nats.go", nats.Version, "tzdata", calendar.ZoneDataVersion)
		},
	})
}

// unknown is the commit of a build without version control information.
const unknown = "unknown"

// buildCommit is the revision that a build outside of a clone sets (-ldflags -X): that of an image,
// whose build has no version control information.
var buildCommit string

// releaseOf returns the version of the program: of a module that "go install" fetched, that of the module.
func releaseOf(info *debug.BuildInfo, ok bool) string {
	if module := fetched(info, ok); buildCommit == "" && module != "" {
		return strings.TrimPrefix(module, "v")
	}
	return version
}

// fetched returns the version of the module that "go install" fetched; "" for a build in a clone.
func fetched(info *debug.BuildInfo, ok bool) string {
	if !ok || info.Main.Sum == "" { // only a fetched module has one
		return ""
	}
	return info.Main.Version
}

// pseudoVersion matches the version of a module at a commit without a tag, with the start of its revision.
var pseudoVersion = regexp.MustCompile(`[-.][0-9]{14}-([0-9a-f]{12})$`)

// commit returns the revision of the clone that the program was built from, or of the module that "go
// install" fetched: the start of the revision, or the name of its tag.
func commit(info *debug.BuildInfo, ok bool) string {
	if buildCommit != "" {
		return buildCommit
	}
	if !ok {
		return unknown
	}
	revision, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = " with changes"
		}
	}
	switch {
	case revision != "":
		return revision + dirty
	case info.Main.Version == "" || info.Main.Version == "(devel)":
		return unknown
	}
	if m := pseudoVersion.FindStringSubmatch(info.Main.Version); m != nil {
		return m[1]
	}
	return info.Main.Version
}
