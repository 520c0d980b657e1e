package natsapi

import "testing"

// TestImported: only reply subjects of service imports count as imported.
func TestImported(t *testing.T) {
	t.Parallel()
	for reply, want := range map[string]bool{
		"_R_.x": true, "_GR_.a.b._R_.x": true,
		"": false, "_INBOX.x": false, "_R_": false, "_GR_.a.b._INBOX.x": false, "x._R_.y": false, "_GR_.a._R_.x": false,
	} {
		if got := imported(reply); got != want {
			t.Errorf("%q: %v, want %v", reply, got, want)
		}
	}
}
