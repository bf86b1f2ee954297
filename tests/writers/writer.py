"""Writes orders with rows of the outbox, until the file `stop` is in its folder. A transaction whose COMMIT is not
answered is repeated with the same ids, as docs/TRANSACTIONS.md says. Some transactions are rolled back."""

import json
import os
import random
import sys
import time
import uuid

import pymysql

HOST, PORT, USER, PASSWORD, DATABASE, MOST_ROWS = sys.argv[1:]
DUPLICATE_KEY = 1062


class SharedTransaction:
    """The connection as the INSERT of the document gets it. The transaction goes on with the next row."""

    def __init__(self, connection):
        self.cursor = connection.cursor

    def commit(self):
        pass


def new_id():
    bits = int(time.time() * 1000) << 80 | 7 << 76 | random.getrandbits(12) << 64 | 2 << 62 | random.getrandbits(62)
    return uuid.UUID(int=bits)


def insert(connection, uuid7, mail):
    # THE INSERT OF docs/TRANSACTIONS.md


def write(connection, ids, keeps):
    with connection.cursor() as cursor:
        for id in ids:
            cursor.execute("INSERT IGNORE INTO sold (id) VALUES (%s)", (id.bytes,))
            insert(SharedTransaction(connection), lambda: id, {"pad": "python"})
        if keeps:
            connection.commit()
            return
        connection.rollback()
        cursor.executemany("INSERT INTO undone (id) VALUES (%s)", [(id.bytes,) for id in ids])
        connection.commit()


connection = None
while not os.path.exists("stop"):
    ids = [new_id() for _ in range(random.randint(1, int(MOST_ROWS)))]
    keeps = random.randrange(8) > 0
    while True:
        try:
            if connection is None:
                # Without TLS, so that the test can lose answers.
                connection = pymysql.connect(
                    host=HOST, port=int(PORT), user=USER, password=PASSWORD, database=DATABASE, read_timeout=30,
                    ssl_disabled=True,
                )
            write(connection, ids, keeps)
            break
        except pymysql.MySQLError as error:
            if error.args[0] == DUPLICATE_KEY:
                # The COMMIT before was done, and the rows still wait.
                connection.rollback()
                break
            print(error, flush=True)
            connection = None
            if not keeps:
                break
            time.sleep(0.05)
