package app

import "testing"

// TestWritesAreGrouped: group commit is on where every write is synced, also with the
// default profile and replicas.
func TestWritesAreGrouped(t *testing.T) {
	t.Parallel()
	tests := []struct {
		profile  Profile
		replicas int
		want     bool
	}{
		{"", 0, true},
		{ProfileSafe, 0, true},
		{ProfileSafe, 1, true},
		{ProfileSafe, 3, false},
		{ProfileFast, 0, false},
		{ProfileFast, 1, false},
	}
	for _, tt := range tests {
		o := Options{Profile: tt.profile, Replicas: tt.replicas, NATSURL: "nats://127.0.0.1:4222"}
		if err := o.setDefaults(); err != nil {
			t.Fatal(err)
		}
		if got := o.StoreConfig().GroupCommit; got != tt.want {
			t.Errorf("profile %q, %d replicas: got GroupCommit %v, want %v", tt.profile, tt.replicas, got, tt.want)
		}
	}
}
