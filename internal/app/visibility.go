package app

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/belfryio/belfry/internal/cpuspare"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/visibility"
	"github.com/belfryio/belfry/router"
)

// historyFolder is the folder in Data of the search index.
const historyFolder = "visibility"

// checkHistory returns an error of schemas.CodeConfig for invalid options of the search index.
func (o *Options) checkHistory() error {
	switch {
	case o.History < 0:
		return badConfig("history is %s; it must be more than 0", o.History)
	case o.HistoryBytes < 0:
		return badConfig("history-bytes is %d; it must be more than 0", o.HistoryBytes)
	case o.runs(RoleVisibility) && !o.embedded() && o.HistoryFolder == "":
		return badConfig("role visibility needs a folder of this node for its file: give history-folder")
	}
	return visibility.CheckAttributes(o.HistoryAttributes)
}

// indexFolder returns the folder of the search index.
func (o *Options) indexFolder() string {
	if o.HistoryFolder != "" {
		return o.HistoryFolder
	}
	return filepath.Join(o.Data, historyFolder)
}

// lockIndex locks the folder of the search index, because two nodes would write the rows of different changes to one
// index. The node starts without the lock if the folder cannot be written: then the role reports it, and timers fire.
// Error: ErrInUse.
func (o *Options) lockIndex() (unlock func(context.Context) error, err error) {
	unlock = func(context.Context) error { return nil }
	folder := o.indexFolder()
	if !o.runs(RoleVisibility) || sameFolder(folder, o.Data) {
		return unlock, nil
	}
	locked, err := lockNamed("history-folder", folder)
	switch {
	case err == nil:
		return locked, nil
	case errors.Is(err, ErrInUse):
		return nil, err
	}
	return unlock, nil
}

// sameFolder reports whether two paths name one folder, which may be a symbolic link in one of them.
func sameFolder(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	first, err := os.Stat(a)
	if err != nil {
		return false
	}
	second, err := os.Stat(b)
	return err == nil && os.SameFile(first, second)
}

func (a *App) visibilityOptions() visibility.Options {
	return visibility.Options{
		Buckets: a.store, Folder: a.o.indexFolder(), History: a.o.History, HistoryBytes: a.o.HistoryBytes, Attributes: a.o.HistoryAttributes,
		NowMs: a.nowMs, Spare: cpuspare.New().Spare, Log: a.component("visibility"), Registerer: a.reg,
	}
}

// searchState is the progress of the search index as the node announces it.
func searchState(p visibility.Progress) *store.SearchState {
	state := &store.SearchState{Behind: p.Behind, Entries: p.Rows, CountsOnly: p.CountsOnly, CatchingUp: p.CatchingUp, Failing: p.Problem != ""}
	if !p.AsOf.IsZero() {
		state.AsOfMs = p.AsOf.UnixMilli()
	}
	return state
}

// Visibility returns the search index of a node with that role; nil for none, and before Start.
func (a *App) Visibility() *visibility.Visibility { return a.searching.Load() }

// Router returns the operations of a node with that role; nil for none, and before Start.
func (a *App) Router() *router.Service { return a.routing.Load() }
