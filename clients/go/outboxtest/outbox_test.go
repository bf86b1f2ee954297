package outboxtest

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"

	"tickr"
)

// dsn writes the address of TICKR_MYSQL_URL as the driver takes it.
func dsn(t *testing.T, address string) string {
	t.Helper()
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatal("TICKR_MYSQL_URL is no URL")
	}
	place := "tcp(" + parsed.Host + ")"
	if socket := parsed.Query().Get("socket"); socket != "" {
		place = "unix(" + socket + ")"
	}
	password, _ := parsed.User.Password()
	return parsed.User.Username() + ":" + password + "@" + place + parsed.Path
}

func declare(t *testing.T, name string) {
	t.Helper()
	address := strings.Split(os.Getenv("TICKR_URL"), ",")[0] + "/v1/kinds/" + name
	request, err := http.NewRequest("PUT", address, strings.NewReader(`{"queue":"`+name+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("content-type", "application/json")
	if token := os.Getenv("TICKR_TOKEN"); token != "" {
		request.Header.Set("authorization", "Bearer "+token)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil || answer.StatusCode != 201 {
		t.Fatal(answer, err)
	}
	_ = answer.Body.Close()
}

func TestAJobOfATransactionExistsExactlyIfItWasCommitted(t *testing.T) {
	address := os.Getenv("TICKR_MYSQL_URL")
	if os.Getenv("TICKR_URL") == "" || address == "" {
		t.Skip("TICKR_URL or TICKR_MYSQL_URL is not set: they name a running tickr and its database")
	}
	var random [4]byte
	if _, err := rand.Read(random[:]); err != nil {
		t.Fatal(err)
	}
	kind := tickr.Kind[int, int]{Name: "go-outbox." + hex.EncodeToString(random[:])}
	declare(t, kind.Name)
	db, err := sql.Open("mysql", dsn(t, address))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	client, err := tickr.NewClient(tickr.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()

	if _, err := kind.EnqueueTx(ctx, db, 1, tickr.Options{}); err == nil {
		t.Error("a pool was taken for a transaction")
	}
	var ids []string
	for _, keeps := range []bool{false, true} {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(time.Second).Truncate(time.Millisecond)
		options := tickr.Options{Queue: kind.Name, ExecuteAt: at, OrderKey: kind.Name, Priority: tickr.Int(2)}
		for payload := 0; payload < 3; payload++ {
			id, err := kind.EnqueueTx(ctx, tx, payload, options)
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
		if keeps {
			err = tx.Commit()
		} else {
			err = tx.Rollback()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := client.Nudge(ctx); err != nil {
		t.Fatal(err)
	}
	worker, err := tickr.NewWorker(tickr.WorkerConfig{Queues: []string{kind.Name}, Logf: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	order := make(chan int, 3)
	tickr.Handle(worker, kind, func(_ context.Context, payload int, _ *tickr.Attempt) (int, error) {
		order <- payload
		return payload, nil
	})
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- worker.Run(running) }()
	for want := 0; want < 3; want++ {
		select {
		case got := <-order:
			if got != want {
				t.Errorf("job %d ran instead of %d", got, want)
			}
		case <-ctx.Done():
			t.Fatal("a committed job did not run")
		}
	}
	for place, id := range ids {
		view, err := client.Get(ctx, id)
		switch {
		case place < 3 && !tickr.HasCode(err, "not_found"):
			t.Errorf("job %d exists after a rollback: %v", place, err)
		case place >= 3 && err != nil:
			t.Error(err)
		case place >= 3 && (view.Priority != 2 || view.OrderKey != kind.Name):
			t.Error(string(view.Raw))
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
