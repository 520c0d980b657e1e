package visibility

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// schemaVersion is the version of the tables below, and of the records in them. A file with another
// version is deleted and built again. Raise it with every change.
const schemaVersion = 3

// tables are the tables and indexes of the store.
//
// A search reads (key, n) pairs from one or a few indexes in its order, then the rows. The attributes
// that most entries share are in series, so that the two indexes by series serve all of them. An index
// whose name ends in _done has only entries that are done. A time of zero means "not yet".
//
// The columns after n in an index are no part of its order: with them a search compares series, states and
// errors without the rows. Only indexes have them that a change of these columns rewrites anyway: those by state
// and error, and those of entries that are done.
//
// counters has the numbers of a service, or of one of the sums allServices and namedTenants, in the period of width
// minutes that begins at minute at. spans has the bounds of the due times of the entries of a state that are done in
// an hour, and of the times at which the entries were done that are due in an hour (see span). They may be wider than
// the entries demand.
const tables = `
CREATE TABLE series(n INTEGER PRIMARY KEY, tenant TEXT NOT NULL, service TEXT NOT NULL, source TEXT NOT NULL, type TEXT NOT NULL, host TEXT NOT NULL);
CREATE TABLE errors(n INTEGER PRIMARY KEY, text TEXT NOT NULL, entries INTEGER NOT NULL);
CREATE TABLE services(n INTEGER PRIMARY KEY, tenant TEXT NOT NULL, service TEXT NOT NULL);
CREATE TABLE offsets(shard INTEGER PRIMARY KEY, stream TEXT NOT NULL, revision INTEGER NOT NULL, asof INTEGER NOT NULL);
CREATE TABLE timers(
	n INTEGER PRIMARY KEY, id BLOB NOT NULL, shard INTEGER NOT NULL, revision INTEGER NOT NULL, stored INTEGER NOT NULL,
	series INTEGER NOT NULL, state INTEGER NOT NULL, added INTEGER NOT NULL, due INTEGER NOT NULL, fired INTEGER NOT NULL, done INTEGER NOT NULL,
	error INTEGER NOT NULL, event TEXT NOT NULL, grp TEXT NOT NULL, schedule BLOB, recurs INTEGER NOT NULL, attributes TEXT NOT NULL, record BLOB NOT NULL);
CREATE UNIQUE INDEX timers_id ON timers(id);
CREATE INDEX timers_event ON timers(event, due);
CREATE INDEX timers_event_done ON timers(event, done, n, state, series, error) WHERE done > 0;
CREATE INDEX timers_series ON timers(series, state, due);
CREATE INDEX timers_series_done ON timers(series, state, done) WHERE done > 0;
CREATE INDEX timers_state ON timers(state, due, n, series, error);
CREATE INDEX timers_state_done ON timers(state, done, n, series, error) WHERE done > 0;
CREATE INDEX timers_group ON timers(grp, due) WHERE grp <> '';
CREATE INDEX timers_group_done ON timers(grp, done, n, state, series, error) WHERE grp <> '' AND done > 0;
CREATE INDEX timers_error ON timers(error, due, n, series, state) WHERE error > 0;
CREATE INDEX timers_error_done ON timers(error, done, n, series, state) WHERE error > 0 AND done > 0;
CREATE INDEX timers_runs ON timers(schedule, due) WHERE schedule IS NOT NULL;
CREATE INDEX timers_runs_done ON timers(schedule, done) WHERE schedule IS NOT NULL AND done > 0;
CREATE INDEX timers_recurs ON timers(recurs, due) WHERE recurs > 0;
CREATE INDEX timers_recurs_done ON timers(recurs, done) WHERE recurs > 0 AND done > 0;
CREATE TABLE attributes(term TEXT, due INTEGER, n INTEGER, PRIMARY KEY(term, due, n)) WITHOUT ROWID;
CREATE TABLE attributes_done(term TEXT, done INTEGER, n INTEGER, PRIMARY KEY(term, done, n)) WITHOUT ROWID;
CREATE TABLE totals(series INTEGER, state INTEGER, entries INTEGER NOT NULL, failed INTEGER NOT NULL, PRIMARY KEY(series, state)) WITHOUT ROWID;
CREATE TABLE counters(
	width INTEGER, at INTEGER, service INTEGER,
	added INTEGER NOT NULL, fired INTEGER NOT NULL, due INTEGER NOT NULL, success INTEGER NOT NULL, fail INTEGER NOT NULL, cancelled INTEGER NOT NULL, completed INTEGER NOT NULL,
	PRIMARY KEY(width, at, service)) WITHOUT ROWID;
CREATE TABLE spans(sort INTEGER, hour INTEGER, state INTEGER, least INTEGER NOT NULL, most INTEGER NOT NULL, PRIMARY KEY(sort, hour, state)) WITHOUT ROWID;
`

const (
	// fileName is the name of the file in the folder of the store.
	fileName = "history.db"
	// readers is the number of connections that read, which bounds the concurrent calls of a Reader.
	readers = 4
	// writeCache and readCache bound the memory of a connection, in KiB.
	writeCache = 32 << 10
	readCache  = 4 << 10
	// maxLog is the size in bytes to which SQLite truncates its write-ahead log after a checkpoint.
	maxLog = 128 << 20
)

// openDB opens the file for writing, or for reading.
func openDB(path string, write bool) (*sql.DB, error) {
	q := url.Values{"_pragma": {"busy_timeout(5000)", "temp_store(memory)"}}
	if write {
		// The file may lose its last transactions with a power loss, but not its consistency. Offsets
		// are in the same transactions, so that they are read again.
		q["_pragma"] = append(q["_pragma"], "journal_mode(wal)", "synchronous(normal)", fmt.Sprintf("journal_size_limit(%d)", maxLog), "wal_autocheckpoint(16384)", fmt.Sprintf("cache_size(-%d)", writeCache))
	} else {
		q["_pragma"] = append(q["_pragma"], "query_only(1)", fmt.Sprintf("cache_size(-%d)", readCache))
	}
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: q.Encode()}).String())
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	most := readers + 1 // one to load the dictionary
	if write {
		most = 1
	}
	db.SetMaxOpenConns(most)
	db.SetMaxIdleConns(most)
	return db, nil
}

// errVersion is the error for a file with another schema.
var errVersion = errors.New("the file has another schema")

// makeTables makes the tables in an empty file, and checks the schema of another one.
func makeTables(ctx context.Context, db *sql.DB) error {
	var version, objects int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&objects); err != nil {
		return err
	}
	switch {
	case version == schemaVersion:
		return nil
	case objects > 0:
		return errVersion
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if _, err = tx.ExecContext(ctx, tables+fmt.Sprintf("PRAGMA user_version = %d;", schemaVersion)); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// removeFiles deletes the store's files in a folder.
func removeFiles(folder string) error {
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(filepath.Join(folder, fileName+suffix)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}
