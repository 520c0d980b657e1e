package schemas

import "testing"

func TestInboxes(t *testing.T) {
	t.Parallel()
	more := Inboxes{"REPLIES.shop", "_R"}
	for subject, want := range map[string]bool{
		"_INBOX.abc": true, "_INBOX.abc.def": true, "_INBOX_orders.abc": true, "_R_.abc.def": true,
		"_GR_.cluster.server._INBOX.abc": true, "_GR_.cluster.server._R_.abc": true,
		"REPLIES.shop.abc": true, "_R.abc": true,

		"": false, "_INBOX": false, "_INBOX.": false, "INBOX.abc": false, "_inbox.abc": false, "x._INBOX.abc": false,
		"$KV.clock.clock.0": false, "$JS.API.STREAM.PURGE.TIMERS_FIRED": false, "$JS.ACK.TIMERS_ADD.router.1.1.1.1.0": false, "$SRV.INFO": false,
		"timers.add": false, "timers.fired.orders": false, "callbacks.orders.x": false, "_R_x.abc": false,
		"_GR_.cluster.server.$KV.clock.clock.0": false, "_GR_.cluster.server": false, "_GR_.abc": false, "_GR_.a.b._GR_.c.d._INBOX.x": false,
		"REPLIES.shop": false, "REPLIES.shopper.abc": false, "REPLIES.abc": false,
	} {
		if got := more.Allow(subject); got != want {
			t.Errorf("Allow(%q): got %v, want %v", subject, got, want)
		}
	}
	for _, prefix := range []string{"", ".a", "a.", "a..b", "a.*", ">", "a b", "$KV", "$KV.clock", "timers", "timers.fired"} {
		if err := CheckInboxPrefix(prefix); CodeOf(err) != CodeConfig {
			t.Errorf("CheckInboxPrefix(%q): got error %v, want code config", prefix, err)
		}
	}
	for _, prefix := range more {
		if err := CheckInboxPrefix(prefix); err != nil {
			t.Error(err)
		}
	}
}
