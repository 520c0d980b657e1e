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

// BeginRestore marks the account as incomplete. It can be repeated.
func BeginRestore(ctx context.Context, c *jet.Client, replicas int) error {
	return c.CreateStream(ctx, jet.StreamConfig{
		Name: restoringStream, Description: "Belfry: a restore runs, or was interrupted", Subjects: []string{restoringStream},
		Storage: jet.FileStorage, Replicas: max(replicas, 1), MaxBytes: restoringBytes,
	})
}

// EndRestore marks the account as complete.
func EndRestore(ctx context.Context, c *jet.Client) error {
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
