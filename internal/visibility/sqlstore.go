package visibility

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/belfryio/belfry/schemas"
)

// ErrDamagedFile is the error if SQLite cannot use the file. The caller must delete and rebuild it.
var ErrDamagedFile = errors.New("the file of the search index is damaged")

// sqlStore is the embedded Store. Write, Prune, Reconcile and Offsets are for one goroutine.
type sqlStore struct {
	folder string
	dict   dictionary
	// stale is true if the dictionary may have numbers that are not stored.
	stale    bool
	write    *sql.DB
	conn     *sql.Conn // of write
	prepared map[string]*sql.Stmt
	read     *sql.DB
	// readers has the idle connections of read.
	readers chan *reader
	all     []*reader
	// damage is the first error by which a reader found the file damaged; nil for none.
	damage atomic.Pointer[error]
	// work, few and serviceBuckets replace maxWork, maxFew and MaxServiceBuckets in tests.
	work, few      int64
	serviceBuckets int
}

// OpenSQL opens the embedded store in a folder, and makes both if they are missing. It deletes a
// file that is damaged, or that has the schema of another version. made is true for a store without
// entries. Errors are those of the file system.
func OpenSQL(ctx context.Context, folder string) (s Store, made bool, err error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, false, err
	}
	st, err := openSQL(ctx, folder)
	if errors.Is(err, errVersion) || damaged(err) {
		if err := removeFiles(folder); err != nil {
			return nil, false, err
		}
		st, err = openSQL(ctx, folder)
	}
	if err != nil {
		return nil, false, fmt.Errorf("open the search index in %s: %w", folder, err)
	}
	return st, st.dict.count() == 0, nil
}

func openSQL(ctx context.Context, folder string) (_ *sqlStore, err error) {
	s := &sqlStore{folder: folder, prepared: map[string]*sql.Stmt{}, readers: make(chan *reader, readers), work: maxWork, few: maxFew, serviceBuckets: MaxServiceBuckets}
	defer func() {
		if err != nil {
			_ = s.Close()
		}
	}()
	path := filepath.Join(folder, fileName)
	if s.write, err = openDB(path, true); err != nil {
		return nil, err
	}
	if err = makeTables(ctx, s.write); err != nil {
		return nil, err
	}
	if err = os.Chmod(path, 0o600); err != nil {
		return nil, err
	}
	if err = s.dict.load(ctx, s.write); err != nil {
		return nil, err
	}
	if s.conn, err = s.write.Conn(ctx); err != nil {
		return nil, err
	}
	if s.read, err = openDB(path, false); err != nil {
		return nil, err
	}
	for range readers {
		conn, err := s.read.Conn(ctx)
		if err != nil {
			return nil, err
		}
		r := &reader{conn, map[string]*sql.Stmt{}}
		s.all = append(s.all, r)
		s.readers <- r
	}
	return s, nil
}

// damaged reports whether an error means that SQLite cannot use a file, or that its content is corrupt.
func damaged(err error) bool {
	if errors.Is(err, ErrDamagedFile) {
		return true
	}
	e, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return false
	}
	code := e.Code() & 0xff
	return code == sqlite3.SQLITE_CORRUPT || code == sqlite3.SQLITE_NOTADB || e.Code() == sqlite3.SQLITE_IOERR_SHORT_READ
}

// asDamaged wraps an error as ErrDamagedFile if damaged reports true for it.
func asDamaged(err error) error {
	if err == nil || !damaged(err) || errors.Is(err, ErrDamagedFile) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrDamagedFile, err)
}

// noteDamage keeps the error of a reader for Err if damaged reports true for it.
func (s *sqlStore) noteDamage(err error) {
	if damaged(err) {
		err = asDamaged(err)
		s.damage.Store(&err)
	}
}

// Err implements Store.
func (s *sqlStore) Err() error {
	if err := s.damage.Load(); err != nil {
		return *err
	}
	return nil
}

// Close implements Store.
func (s *sqlStore) Close() error {
	var errs []error
	for _, r := range s.all {
		errs = append(errs, r.close())
	}
	for _, st := range s.prepared {
		errs = append(errs, st.Close())
	}
	if s.read != nil {
		errs = append(errs, s.read.Close())
	}
	if s.conn != nil {
		errs = append(errs, s.conn.Close())
	}
	if s.write != nil {
		errs = append(errs, s.write.Close())
	}
	return errors.Join(errs...)
}

// Size implements Store.
func (s *sqlStore) Size() (rows, bytes int64) {
	for _, name := range []string{fileName, fileName + "-wal"} {
		if info, err := os.Stat(filepath.Join(s.folder, name)); err == nil {
			bytes += info.Size()
		}
	}
	return s.dict.count(), bytes
}

// statement returns a prepared statement of the writer.
func (s *sqlStore) statement(ctx context.Context, query string) (*sql.Stmt, error) {
	if st := s.prepared[query]; st != nil {
		return st, nil
	}
	st, err := s.conn.PrepareContext(ctx, query)
	if err == nil {
		s.prepared[query] = st
	}
	return st, err
}

// Offsets implements Store.
func (s *sqlStore) Offsets(ctx context.Context) (map[int]Offset, error) {
	offsets := map[int]Offset{}
	rows, err := s.conn.QueryContext(ctx, "SELECT shard, stream, revision, asof FROM offsets")
	if err != nil {
		return nil, asDamaged(err)
	}
	return offsets, asDamaged(scanAll(rows, func(scan func(...any) error) error {
		var shard int
		var o Offset
		err := scan(&shard, &o.Stream, &o.Revision, &o.AsOfMs)
		offsets[shard] = o
		return err
	}))
}

// transact runs f in a transaction of the writer. f adds to d, which is added to the totals once the
// transaction is committed.
func (s *sqlStore) transact(ctx context.Context, f func(w *writing) error) (err error) {
	// The context bounds the wait before the transaction, not the transaction: a statement that is
	// interrupted would have to be repeated.
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	defer func() { err = asDamaged(err) }()
	if s.stale {
		if err := s.dict.load(ctx, s.read); err != nil {
			return err
		}
		s.stale = false
	}
	if _, err := s.conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	w := s.begin(ctx)
	if err = f(w); err == nil {
		err = w.flush()
	}
	if err == nil {
		_, err = s.conn.ExecContext(ctx, "COMMIT")
	}
	if err != nil {
		_, undo := s.conn.ExecContext(ctx, "ROLLBACK")
		s.stale = true
		return errors.Join(err, undo)
	}
	s.dict.add(w.totals, w.failed)
	return nil
}

// sliceRows is the number of changes between two calls of Batch.Between, up to a millisecond of work. On two cores a longer
// slice delays timers, because Go leaves a goroutine on its processor for ten milliseconds.
const sliceRows = rowsAtOnce

// Write implements Store.
func (s *sqlStore) Write(ctx context.Context, b Batch) error {
	return s.transact(ctx, func(w *writing) error {
		rest := len(b.Changes)
		for slice := range slices.Chunk(b.Changes, sliceRows) {
			if err := w.change(slice); err != nil {
				return err
			}
			if rest -= len(slice); rest > 0 && b.Between != nil {
				b.Between(len(slice))
			}
		}
		for shard, o := range b.Offsets {
			if err := w.exec("INSERT INTO offsets(shard, stream, revision, asof) VALUES(?, ?, ?, ?) ON CONFLICT(shard) DO UPDATE SET stream = excluded.stream, revision = excluded.revision, asof = excluded.asof",
				shard, o.Stream, o.Revision, o.AsOfMs); err != nil {
				return err
			}
		}
		return nil
	})
}

// pruneAtOnce bounds the entries that one call of Prune removes, reconcileAtOnce the entries that
// Reconcile looks at in one transaction.
const (
	pruneAtOnce     = 500
	reconcileAtOnce = 5000
)

var finalStates, openStates = statesOf()

// statesOf returns all final states, and all others.
func statesOf() (final, open []schemas.State) {
	for st := schemas.State(1); st.Valid(); st++ {
		if st.Final() {
			final = append(final, st)
		} else {
			open = append(open, st)
		}
	}
	return final, open
}

// Prune implements Store.
func (s *sqlStore) Prune(ctx context.Context, beforeMs, maxBytes int64) (removed int, more bool, err error) {
	used, err := s.used(ctx)
	if err != nil {
		return 0, false, err
	}
	full := used > maxBytes
	err = s.transact(ctx, func(w *writing) error {
		oldest, err := w.oldest(beforeMs, full)
		if err != nil {
			return err
		}
		for _, n := range oldest {
			if err := w.remove(n); err != nil {
				return err
			}
		}
		removed, more = len(oldest), len(oldest) == pruneAtOnce || full && len(oldest) > 0
		return w.pruneCounters(beforeMs, more)
	})
	return removed, more, err
}

// pruneCounters removes the counters before a time in Unix milliseconds, and, once no entry that was done before
// it is left, the spans before it.
func (w *writing) pruneCounters(beforeMs int64, entries bool) error {
	for _, width := range widths {
		if err := w.exec("DELETE FROM counters WHERE width = ? AND at < ?", width, beforeMs/minuteMs); err != nil {
			return err
		}
	}
	if entries {
		return nil
	}
	if err := w.exec("DELETE FROM spans WHERE sort = ? AND hour < ?", SortDue, beforeMs/hourMs); err != nil {
		return err
	}
	return w.exec("DELETE FROM spans WHERE sort = ? AND most < ?", SortDone, beforeMs)
}

// used returns the bytes of the pages in use.
func (s *sqlStore) used(ctx context.Context) (int64, error) {
	var pages, free, size int64
	for query, into := range map[string]*int64{"PRAGMA page_count": &pages, "PRAGMA freelist_count": &free, "PRAGMA page_size": &size} {
		if err := s.conn.QueryRowContext(ctx, query).Scan(into); err != nil {
			return 0, asDamaged(err)
		}
	}
	return (pages - free) * size, nil
}

// Reconcile implements Store.
func (s *sqlStore) Reconcile(ctx context.Context, shard int, through uint64, keep func(schemas.TimerID, uint64) bool) (removed int, err error) {
	for _, state := range openStates {
		var due, n int64 = -1 << 62, 0
		for more := true; more && err == nil; {
			if err := ctx.Err(); err != nil {
				return removed, err
			}
			err = s.transact(ctx, func(w *writing) error {
				page, err := w.open(state, due, n)
				if err != nil {
					return err
				}
				for _, e := range page {
					if due, n = e.due, e.n; e.shard == shard && e.revision <= through && !keep(e.id, e.revision) {
						if err := w.remove(e.n); err != nil {
							return err
						}
						removed++
					}
				}
				more = len(page) == reconcileAtOnce
				return nil
			})
		}
	}
	return removed, err
}
