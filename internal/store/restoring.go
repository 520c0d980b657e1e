package store

import (
	"context"
	"errors"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// restoringStream marks an account whose streams a restore is making. The restore makes it before
// the first stream and removes it after the last one. A restore that was killed leaves it, with some
// of the streams. A node would make the missing ones, empty, so Open refuses such an account.
const restoringStream = "BELFRY_RESTORING"

// restoringBytes is the limit of the stream, which stays empty.
const restoringBytes = 4096

// undoRestore tells the user how to remove an incomplete restore.
const undoRestore = "a restore was interrupted, or still runs, so some streams are missing: wait for its end, or remove the new data folder (in an account of your own: the streams TIMERS_…, KV_… and " + restoringStream + ") and restore again"

// BeginRestore marks the account as incomplete. The id is that of the restore: JetStream refuses the mark of another
// one, so of several restores that begin at the same moment only one goes on. It can be repeated with the same id.
// Errors: schemas.ErrConflict while another restore has begun and has not ended.
func BeginRestore(ctx context.Context, c *jet.Client, id string, replicas int) error {
	err := c.CreateStream(ctx, jet.StreamConfig{
		Name: restoringStream, Description: restoreMark(id), Subjects: []string{restoringStream},
		Storage: jet.FileStorage, Replicas: max(replicas, 1), MaxBytes: restoringBytes,
	})
	if errors.Is(err, jet.ErrExists) {
		return schemas.Errorf(schemas.CodeConflict, "%s", undoRestore)
	}
	return err
}

// restoreMark is the description of the stream that marks the account.
func restoreMark(id string) string { return "Belfry: restore " + id + " runs, or was interrupted" }

// markOf returns the mark of an account; "" without one.
func markOf(ctx context.Context, c *jet.Client) (mark string, err error) {
	info, err := c.Stream(ctx, restoringStream)
	if errors.Is(err, jet.ErrNoStream) {
		return "", nil
	}
	return info.Config.Description, err
}

// CheckOwnRestore returns an error if the account does not have the mark of the restore with the id: another restore has
// begun, or another client removed the mark, and another restore may have begun and ended since. Errors:
// schemas.ErrConflict.
func CheckOwnRestore(ctx context.Context, c *jet.Client, id string) error {
	mark, err := markOf(ctx, c)
	switch {
	case err != nil || mark == restoreMark(id):
		return err
	case mark == "":
		return schemas.Errorf(schemas.CodeConflict, "the mark %s of this restore is gone, so no stream was removed: another client removed it, and the streams may be those of another restore; if they are not, remove them, and restore again", restoringStream)
	}
	return schemas.Errorf(schemas.CodeConflict, "another restore into this account has begun, so no stream was removed: wait for its end, and check which backup the account has")
}

// EndRestore marks the account as complete. Errors: those of CheckOwnRestore.
func EndRestore(ctx context.Context, c *jet.Client, id string) error {
	if err := CheckOwnRestore(ctx, c, id); err != nil {
		return err
	}
	return c.DeleteStream(ctx, restoringStream)
}

// CheckRestored returns an error of the code if a restore into the account has begun and has not ended.
func CheckRestored(ctx context.Context, c *jet.Client, code schemas.Code) error {
	switch _, err := c.Stream(ctx, restoringStream); {
	case errors.Is(err, jet.ErrNoStream):
		return nil
	case err != nil:
		return err
	}
	return schemas.Errorf(code, "%s", undoRestore)
}

// CheckRestored is the function of this name, for doctor.
func (v *View) CheckRestored(ctx context.Context) error {
	return CheckRestored(ctx, v.jet, schemas.CodeConfig)
}
