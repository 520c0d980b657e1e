package deploy

import (
	"encoding/json"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/test/proc"
)

const releaseFile = ".goreleaser.yaml"

// release is the part of the configuration of releases that the tests check.
type release struct {
	Builds []struct {
		Main                              string
		Env, Flags, LDFlags, GOOS, GOARCH []string
	}
	Checksum map[string]string
	SBOMs    []map[string]string
}

func readRelease(t *testing.T) release {
	t.Helper()
	var r release
	if err := yaml.Unmarshal([]byte(read(t, releaseFile)), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Builds) != 1 || len(r.Builds[0].LDFlags) != 1 {
		t.Fatalf("got the builds %+v, want one with one line of ldflags", r.Builds)
	}
	return r
}

// TestRelease: releases are static programs for six platforms, with checksums and SBOMs.
func TestRelease(t *testing.T) {
	t.Parallel()
	r := readRelease(t)
	b := r.Builds[0]
	if !slices.Equal(b.GOOS, []string{"linux", "darwin", "windows"}) || !slices.Equal(b.GOARCH, []string{"amd64", "arm64"}) ||
		!slices.Equal(b.Env, []string{"CGO_ENABLED=0"}) || !slices.Equal(b.Flags, []string{"-trimpath"}) || b.Main != "./cmd/belfry" {
		t.Errorf("got the build %+v", b)
	}
	if r.Checksum["algorithm"] != "sha256" || len(r.SBOMs) != 1 {
		t.Errorf("got the checksum %v and the SBOMs %v", r.Checksum, r.SBOMs)
	}
}

// TestReleaseVersion: the flags of the linker in the configuration set version and commit of the program. A
// variable that does not exist, or is a constant, would be ignored.
func TestReleaseVersion(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "this test builds the program once more")
	const commit = "0123456789abcdef0123456789abcdef01234567"
	flags := strings.NewReplacer("{{ .Version }}", "9.8.7", "{{ .FullCommit }}", commit).Replace(readRelease(t).Builds[0].LDFlags[0])
	if regexp.MustCompile(`\{\{`).MatchString(flags) {
		t.Fatalf("the flags have a template that this test does not know: %s", flags)
	}
	out, err := exec.CommandContext(t.Context(), proc.Build(t, "-ldflags", flags), "version", "-o", "json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Version, Commit string }
	if err := json.Unmarshal(out, &got); err != nil || got.Version != "9.8.7" || got.Commit != commit {
		t.Errorf("got %s (%v), want version 9.8.7 of %s", out, err, commit)
	}
}

// TestGoReleaser: GoReleaser accepts the configuration.
func TestGoReleaser(t *testing.T) {
	t.Parallel()
	need(t, "goreleaser", "that GoReleaser accepts "+releaseFile)
	t.Logf("%s", run(t, ".", "goreleaser", "check", releaseFile))
}
