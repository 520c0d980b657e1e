// Package zonetest makes zone data for tests of calendar.UseZoneData.
package zonetest

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Archive returns the embedded zone data, in which some zones have the rules of others:
// {"Europe/Berlin": "Africa/Lagos"} is a release in which Berlin stays at +01:00 all year.
func Archive(tb testing.TB, rules map[string]string) []byte {
	tb.Helper()
	embedded := read(tb)
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for name := range embedded {
		from := name
		if rule, ok := rules[name]; ok {
			from = rule
		}
		if embedded[from] == nil {
			tb.Fatalf("no zone %q", from)
		}
		f, err := w.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		if err == nil {
			_, err = f.Write(embedded[from])
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

// read returns the files of the embedded zone data by name.
func read(tb testing.TB) map[string][]byte {
	tb.Helper()
	_, source, _, _ := runtime.Caller(0)
	file, err := os.Open(filepath.Join(filepath.Dir(source), "..", "calendar", "zoneinfo", "zoneinfo.zip.gz"))
	if err != nil {
		tb.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // only read
	plain, err := gzip.NewReader(file)
	if err != nil {
		tb.Fatal(err)
	}
	archive, err := io.ReadAll(plain)
	if err != nil {
		tb.Fatal(err)
	}
	r, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		tb.Fatal(err)
	}
	files := map[string][]byte{}
	for _, f := range r.File {
		if f.FileInfo().IsDir() {
			continue
		}
		in, err := f.Open()
		if err != nil {
			tb.Fatal(err)
		}
		if files[f.Name], err = io.ReadAll(in); err != nil {
			tb.Fatal(err)
		}
	}
	return files
}
