package main

import (
	"runtime"
	"runtime/debug"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
)

func (c *cli) versionCommand() *cobra.Command {
	return c.printing(&cobra.Command{
		Use:   "version",
		Short: "Show the version",
		Args:  exactly(0),
		RunE: func(*cobra.Command, []string) error {
			commit := commit()
			if c.json() {
				return c.printJSON(map[string]string{"version": version, "commit": commit, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
					"nats-server": server.VERSION, "nats.go": nats.Version})
			}
			return c.printText("belfry", version, "commit", commit, "go", runtime.Version(), "platform", runtime.GOOS+"/"+runtime.GOARCH,
				"nats-server", server.VERSION, "nats.go", nats.Version)
		},
	})
}

// commit is what the program was built from, if the build knew.
func commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	revision, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+changes"
		}
	}
	return revision + dirty
}
