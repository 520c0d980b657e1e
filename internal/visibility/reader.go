package visibility

import (
	"context"
	"database/sql"
	"errors"
)

// reader is a connection that reads, with the statements that are prepared on it. The number of
// texts of statements is bounded.
type reader struct {
	conn  *sql.Conn
	stmts map[string]*sql.Stmt
}

// reading is a transaction of a reader. ctx bounds it: each checks ctx before a statement, and every
// rowsBetweenChecks rows. It does not pass ctx on, because database/sql and the driver start a goroutine for each statement with a context
// that can end.
type reading struct {
	ctx context.Context
	r   *reader
}

// rowsBetweenChecks is the number of rows between two looks at the context.
const rowsBetweenChecks = 1000

// transact runs f in a transaction.
func (r *reader) transact(ctx context.Context, f func(*reading) error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	unending := context.WithoutCancel(ctx)
	if _, err := r.conn.ExecContext(unending, "BEGIN"); err != nil {
		return err
	}
	defer func() {
		_, undo := r.conn.ExecContext(unending, "ROLLBACK")
		err = errors.Join(err, undo)
	}()
	return f(&reading{ctx, r})
}

// each passes the rows of a query to fn.
func (tx *reading) each(query string, args []any, fn func(scan func(...any) error) error) error {
	if err := tx.ctx.Err(); err != nil {
		return err
	}
	ctx := context.WithoutCancel(tx.ctx)
	st := tx.r.stmts[query]
	if st == nil {
		var err error
		if st, err = tx.r.conn.PrepareContext(ctx, query); err != nil {
			return err
		}
		tx.r.stmts[query] = st
	}
	rows, err := st.QueryContext(ctx, args...)
	if err != nil {
		return err
	}
	read := 0
	return scanAll(rows, func(scan func(...any) error) error {
		if read++; read%rowsBetweenChecks == 0 && tx.ctx.Err() != nil {
			return tx.ctx.Err()
		}
		return fn(scan)
	})
}

// close closes the connection.
func (r *reader) close() error {
	var errs []error
	for _, st := range r.stmts {
		errs = append(errs, st.Close())
	}
	return errors.Join(append(errs, r.conn.Close())...)
}
