# sqlmodel_shop.py
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from sqlmodel import Field, Session, SQLModel, create_engine

import fairlead
from fairlead.contrib.fastapi import Submitter, lifespan, submitter

URL = os.environ.get("SHOP_URL", "sqlite:///shop.db")
ENGINE_URL = os.environ.get("SHOP_ENGINE_URL", "sqlite:///shop.db?timeout=30")
# the same database on PostgreSQL: postgresql://db/shop and postgresql+psycopg://db/shop

tasks = fairlead.App(URL)
engine = create_engine(ENGINE_URL)


class Order(SQLModel, table=True):
    __tablename__ = "orders"
    id: int = Field(primary_key=True)
    confirmed: int = 0


def get_session() -> Iterator[Session]:
    with Session(engine) as session, session.begin():  # commits, or rolls back after an error
        yield session


@tasks.task
def confirm(order: int) -> None:
    with Session(engine) as session, session.begin():
        found = session.get_one(Order, order)
        found.confirmed += 1


# scope="function": the commit comes before the response, not after it
SessionDep = Annotated[Session, Depends(get_session, scope="function")]
Tasks = Annotated[Submitter, submitter(SessionDep)]


@asynccontextmanager
async def tables(site: FastAPI) -> AsyncIterator[None]:
    SQLModel.metadata.create_all(engine)
    yield
    engine.dispose()


site = FastAPI(lifespan=lifespan(tasks, tables))


@site.post("/orders/{number}", status_code=201)
def place_order(number: int, session: SessionDep, tasks: Tasks) -> None:
    session.add(Order(id=number))
    tasks.submit(confirm, order=number)
    if number % 3 == 0:
        raise HTTPException(409, "sold out")  # neither the order nor its task exists
