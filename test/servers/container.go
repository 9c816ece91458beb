package servers

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/leveemq/levee/test/proc"
)

// Container makes a container on a server that Azure has started, and fails the test where it cannot.
func Container(t testing.TB, url, name string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url+"/"+name+"?restype=container", nil)
	if err != nil {
		t.Fatal(err)
	}
	date := time.Now().UTC().Format(http.TimeFormat)
	req.Header.Set("x-ms-date", date)
	req.Header.Set("x-ms-version", "2021-08-06")
	key, err := base64.StdEncoding.DecodeString(AzureKey)
	if err != nil {
		t.Fatal(err)
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("PUT\n" + strings.Repeat("\n", 11) + "x-ms-date:" + date + "\nx-ms-version:2021-08-06\n/" + AzureAccount + req.URL.Path + "\nrestype:container"))
	req.Header.Set("Authorization", "SharedKey "+AzureAccount+":"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	res, err := proc.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusCreated {
		t.Fatalf("make the container %s: %s", name, res.Status)
	}
}
