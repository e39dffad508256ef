# flask_shop.py
import os

from flask import Flask, abort, current_app
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, scoped_session, sessionmaker

import fairlead
from fairlead.contrib.flask import FlaskTasks, Submitter

URL = os.environ.get("SHOP_URL", "sqlite:///shop.db")
ENGINE_URL = os.environ.get("SHOP_ENGINE_URL", "sqlite:///shop.db?timeout=30")
# the same database on PostgreSQL: postgresql://db/shop and postgresql+psycopg://db/shop

tasks = fairlead.App(URL)
flask_tasks = FlaskTasks(tasks)
engine = create_engine(ENGINE_URL)
session = scoped_session(sessionmaker(engine))
submitter = Submitter(session)


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    confirmed: Mapped[int] = mapped_column(default=0)


@tasks.task
def confirm(order: int) -> None:
    found = session.get_one(Order, order)
    found.confirmed += current_app.config["CONFIRMATIONS"]
    session.commit()


def create_site() -> Flask:
    site = Flask(__name__)
    site.config["CONFIRMATIONS"] = 1
    flask_tasks.init_app(site)
    Base.metadata.create_all(engine)

    @site.teardown_appcontext
    def close_session(error: BaseException | None) -> None:
        session.remove()  # after each request and each run; rolls back what was not committed

    @site.post("/orders/<int:number>")
    def place_order(number: int) -> tuple[str, int]:
        session.add(Order(id=number))
        submitter.submit(confirm, order=number)
        if number % 3 == 0:
            abort(409, "sold out")  # neither the order nor its task exists
        session.commit()
        return "", 201

    return site


site = create_site()
