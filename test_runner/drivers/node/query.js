// As ../README.md says, by node-postgres.
const { Client, Query } = require("pg");

const { GATEWAY_PORT, GATEWAY_BRANCH, GATEWAY_PASSWORD } = process.env;
const config = { host: "127.0.0.1", port: Number(GATEWAY_PORT), password: GATEWAY_PASSWORD, database: "postgres" };

async function main() {
  const client = new Client({ ...config, user: "postgres", options: `-cbranch=${GATEWAY_BRANCH}` });
  await client.connect();
  let rows = 0;
  for (const most of [10, 20]) {
    const asked = { name: "few", text: "SELECT i FROM kept WHERE i <= $1", values: [most] };
    rows += (await client.query(asked)).rows.length;
  }
  const long = (await client.query("SELECT repeat('x', 3000000) AS text")).rows[0].text.length;

  const sleep = new Query("SELECT pg_sleep(60)");
  const cancelled = new Promise((resolve) => {
    sleep.on("error", (error) => resolve(error.code));
    sleep.on("end", () => resolve("not"));
  });
  client.query(sleep);
  setTimeout(() => new Client({ ...config, user: "postgres" }).cancel(client, sleep), 1000);
  const code = await cancelled;
  const after = (await client.query("SELECT 1 AS one")).rows[0].one;
  await client.end();

  const other = new Client({ ...config, user: `postgres@${GATEWAY_BRANCH}` });
  await other.connect();
  const user = (await other.query("SELECT current_user AS name")).rows[0].name;
  await other.end();
  console.log(`rows ${rows}, long ${long}, cancelled ${code}, after ${after}, user ${user}`);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
